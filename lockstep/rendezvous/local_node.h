// What this process knows about the place it runs in. The answers do not change while it runs. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/rendezvous/rendezvous.h"

namespace lockstep {

// Equal exactly for processes that can share memory through an abstract unix socket: same kernel boot, same pid, user,
// ipc and net namespaces, same user; and the same label, which splits a host into several "nodes" for tests.
std::string local_node_id(std::string_view label);

// The network interfaces that are up and not loopback, each with one address: IPv4 if it has one. Link-local addresses
// do not count.
std::vector<Interface> network_interfaces();
// The numeric address of the first network interface that is up and not loopback, IPv4 if there is one; else 127.0.0.1.
std::string first_interface_address();

}  // namespace lockstep
