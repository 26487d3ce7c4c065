// Chooses which of a host's network interfaces its peers use: one that all other hosts reach. members (registered) ->
// probe over the network, results through the store -> members with the chosen addresses. Blocks; one thread.
//
// The lowest rank of each host listens on all of its addresses; those of the other hosts connect to each, prove that
// they hold the job's token, and time it. An address that another host has too (for example a bridge for containers)
// leads to another process and counts as unreachable. Of the addresses that all hosts reach, the preferred one is
// taken, unless another answers in less than half the time.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/health/failure_detector.h"
#include "lockstep/comm/net/token.h"
#include "lockstep/comm/rendezvous/rendezvous.h"
#include "lockstep/comm/store/store.h"

namespace lockstep::internal {

// Whether there is a choice: ranks on several nodes, and a node with several interfaces.
bool needs_probe(const std::vector<Member>& members);

struct ProbeSettings {
  int rank = 0;
  std::uint64_t generation = 0;
  std::string job_id;
  Token token;
  Duration host_timeout = kHostTimeout;  // an address that does not answer for so long is not reached
};

// Sets the address of every member with several interfaces; the same on all ranks. The lowest rank of each such host
// logs what was chosen and why. Error{timeout} if a member has no address that all hosts
// reach; it lists each address with the hosts that did not reach it.
void choose_addresses(const ProbeSettings& settings, std::vector<Member>& members, Store& store, Deadline deadline);

// What other hosts measured for one interface: the longest round trip, and the hosts that did not reach it.
struct Reachability {
  Duration round_trip = Duration::zero();
  std::vector<std::string> unreached_from = {};
};
// The index of the interface to take; -1 if no interface is reached by all. Pure.
int choose_interface(const std::vector<Reachability>& interfaces);

}  // namespace lockstep::internal
