// The host and the network interfaces of this process. The results do not change while it runs. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/rendezvous/rendezvous.h"

namespace lockstep::internal {

// Equal exactly for processes that can share memory through an abstract unix socket: same kernel boot, same pid, user,
// ipc and net namespaces, same user; and the same label, which splits a host into several "nodes".
std::string local_node_id(std::string_view label);

// The network interfaces that are up and not loopback, each with one address: IPv4 if it has one. Link-local addresses
// do not count.
std::vector<Interface> network_interfaces();
// The numeric address of the first network interface that is up and not loopback, IPv4 if there is one; else 127.0.0.1.
std::string first_interface_address();

// Where peers may reach this process: `set_address` (LOCKSTEP_ADDRESS) or the interfaces in `set_names`
// (LOCKSTEP_IFNAME), if they are not empty; otherwise all interfaces, first the one with `address`.
// Error{invalid_argument} lists the interfaces if a name does not exist.
std::vector<Interface> interfaces_to_advertise(const std::string& set_address, const std::string& set_names,
                                               const std::string& address);

}  // namespace lockstep::internal
