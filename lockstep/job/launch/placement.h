// Which processor cores each rank of a host gets. machine's topology, what this process may use -> Placement per rank.
// A Machine is read once (hwloc, some milliseconds) and then constant; it is used by one thread at a time. Errors:
// Error{internal} if hwloc cannot read the machine.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal {

enum class Binding {
  none,    // the system decides
  core,    // cores of its own
  cache,   // all that share a last-level cache
  numa,    // a NUMA node, and its memory first
  socket,  // a package
};

// "core", "socket", "numa", "none", and as torchrun's --numa-binding has them: "exclusive", "node", "core-complex";
// empty is none. Error{invalid_argument} lists them.
Binding parse_binding(std::string_view name);

struct Placement {
  std::vector<unsigned long> mask = {};  // of CPUs, as sched_setaffinity() takes it; empty: not bound
  std::string cpus = {};                 // "0-3,16-19"
  int cores = 0;                         // of the set; of ranks with the same set, the part of each
  int memory_node = -1;                  // from which memory comes first; -1: nothing is said
};

// A machine, as far as this process may use it: its affinity and its cpuset.
class Machine {
 public:
  static Machine here();
  // As hwloc describes machines in short, "pack:2 numa:2 core:8 pu:2"; `allowed`: a list of CPUs, empty for all.
  static Machine synthetic(const std::string& description, const std::string& allowed = "");

  Machine(Machine&&) noexcept;
  Machine& operator=(Machine&&) = delete;
  ~Machine();

  int cores() const;  // physical ones; at least 1

  // By local rank. Sockets, NUMA nodes and caches are dealt out in blocks of neighbouring ranks: as many ranks as can
  // have some each, and where there are fewer ranks, a block of them each. Cores are, likewise; all ranks then have the
  // same number of cores, since the rank with the fewest would set the pace.
  std::vector<Placement> place(Binding binding, int ranks) const;

 private:
  struct Topology;
  explicit Machine(std::unique_ptr<Topology> topology);

  std::unique_ptr<Topology> topology_;
};

// Of this machine; empty, and without reading it, for Binding::none.
std::vector<Placement> place_ranks(Binding binding, int ranks);

// Physical cores that this process may use: of this machine, lowered to the cgroup's quota. At least 1.
int physical_cores();

// "rank 4: CPUs 0-3; rank 5: CPUs 4-7", of many ranks the first and the last; "ranks are not bound".
std::string describe(const std::vector<Placement>& placements, int first_rank);

}  // namespace lockstep::internal
