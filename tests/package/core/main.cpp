#include <iostream>

#include "lockstep/comm/rendezvous/rendezvous.h"

int main() {
  using namespace std::chrono_literals;
  const auto no_environment = [](const char*) -> const char* { return nullptr; };
  const lockstep::Membership membership = lockstep::join({}, no_environment);
  const auto deadline = lockstep::Deadline::after(10s);
  membership.store->set("greeting", "one rank says hello", deadline);
  if (membership.size == 1) std::cout << membership.store->get("greeting", deadline) << '\n';
}
