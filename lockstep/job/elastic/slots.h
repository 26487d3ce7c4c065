// Which ranks each host of an attempt has: hosts -> slots. Pure. When an attempt begins is in job_machine_begin.cpp.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::internal {

// A host that is there.
struct HostEntry {
  int number = 0;  // in the order of arrival, never given twice; 0: the first host
  std::string name = {};
  int ranks = 1;
  std::optional<int> wanted = {};     // the node rank that its user asked for
  std::optional<int> node_rank = {};  // its last one
  bool returns = false;               // it was in the job before the first host left
  bool leaves = false;                // its user has asked it to, while an attempt runs
  bool kept_out = false;              // it does not reach another host of the job, and is in no attempt until it does
};

inline constexpr int kFirstHost = 0;  // HostEntry::number
inline constexpr int kOutside = -1;   // asked by no host

inline bool is_available(const HostEntry& host) { return !host.leaves && !host.kept_out; }

// A host's place in an attempt.
struct Slot {
  int host = 0;  // HostEntry::number
  int node_rank = 0;
  int first_rank = 0;
  int ranks = 1;

  friend bool operator==(const Slot&, const Slot&) = default;
};

// Slots for at most `most` of the hosts, by node rank. Hosts that were in the last attempt come first, then those that
// have asked for a node rank, then the others as they arrived. A host gets the node rank that it asked for if
// that is below the number of hosts; others keep theirs if possible.
std::vector<Slot> assign_slots(std::vector<HostEntry> hosts, int most);

int world_size(const std::vector<Slot>& slots);

// "a: ranks 0 to 7; b: rank 8"
std::string describe_slots(const std::vector<Slot>& slots, const std::vector<HostEntry>& hosts);

}  // namespace lockstep::internal
