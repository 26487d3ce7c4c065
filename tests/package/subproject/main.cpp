#include <iostream>

#include "lockstep/comm/net/address.h"

int main() { std::cout << "port " << lockstep::parse_endpoint("[::1]:29500").port << '\n'; }
