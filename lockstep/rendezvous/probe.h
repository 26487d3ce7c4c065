// Which of a host's network interfaces its peers are to use, where there are several: the one that all other hosts
// reach, found by trying. members (introduced) -> probe over the network, results through the store -> members with the
// chosen addresses. Blocks; one thread.
//
// The lowest rank of each host listens on all of its addresses; those of the other hosts connect to each, prove that
// they hold the job's token, and time it. An address that another host has too (a bridge for containers, say) leads
// them to somebody else, which counts as unreachable. Among those that all reach, the preferred one is taken, unless
// another answers in less than half the time.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/net/token.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "lockstep/store/store.h"

namespace lockstep {

// Whether there is anything to choose: ranks on several nodes, one of them with several interfaces.
bool needs_probe(const std::vector<Member>& members);

struct ProbeSettings {
  int rank = 0;
  std::uint64_t generation = 0;
  std::string job_id;
  Token token;
};

// Sets the address of every member with several interfaces; the same on all ranks. The lowest rank of each such host
// logs what was chosen and why. Error{timeout} says who cannot reach whom where no address is reached by all.
void choose_addresses(const ProbeSettings& settings, std::vector<Member>& members, Store& store, Deadline deadline);

// What the ranks of other hosts found out about one interface: the longest round trip, or who did not get through.
struct Reachability {
  Duration round_trip = Duration::zero();
  std::vector<std::string> unreached_from = {};
};
// The index of the interface to take, or -1 if there is none that all reach. Pure.
int choose_interface(const std::vector<Reachability>& interfaces);

}  // namespace lockstep
