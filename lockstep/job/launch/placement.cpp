#include "lockstep/job/launch/placement.h"

#include <hwloc.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/job/launch/cores.h"

namespace lockstep::internal {
namespace {

struct FreeBitmap {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using CpuSet = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

CpuSet copy_of(hwloc_const_bitmap_t set) { return CpuSet(hwloc_bitmap_dup(set)); }

void check(int result, const char* what) {
  if (result != 0) throw system_error(fmt::format("hwloc cannot {}", what), errno);
}

std::string list_of(hwloc_const_bitmap_t set) {
  char* text = nullptr;
  if (hwloc_bitmap_list_asprintf(&text, set) < 0) throw system_error("writing a list of CPUs", errno);
  std::string list(text);
  std::free(text);
  return list;
}

std::vector<unsigned long> mask_of(hwloc_const_bitmap_t set) {
  std::vector<unsigned long> mask(static_cast<std::size_t>(hwloc_bitmap_nr_ulongs(set)));
  check(hwloc_bitmap_to_ulongs(set, static_cast<unsigned>(mask.size()), mask.data()), "write a mask of CPUs");
  return mask;
}

constexpr hwloc_obj_type_t kCacheTypes[] = {HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_CORE};

constexpr std::array<std::pair<std::string_view, Binding>, 8> kNames{{
    {"", Binding::none},
    {"none", Binding::none},
    {"core", Binding::core},
    {"exclusive", Binding::core},
    {"core-complex", Binding::cache},
    {"numa", Binding::numa},
    {"node", Binding::numa},
    {"socket", Binding::socket},
}};

}  // namespace

Binding parse_binding(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name, &std::pair<std::string_view, Binding>::first);
  if (found != kNames.end()) return found->second;
  throw Error(ErrorKind::invalid_argument, fmt::format("ranks cannot be bound to '{}'; use core, socket, numa or none, "
                                                       "or torchrun's exclusive, node or core-complex",
                                                       name));
}

struct Machine::Topology {
  hwloc_topology_t handle = nullptr;

  Topology() { check(hwloc_topology_init(&handle), "be initialised"); }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
  ~Topology() { hwloc_topology_destroy(handle); }

  void restrict_to(hwloc_const_bitmap_t allowed) {
    if (allowed == nullptr) return;
    check(hwloc_topology_restrict(handle, allowed, HWLOC_RESTRICT_FLAG_REMOVE_CPULESS),
          "restrict the machine to the CPUs that this process may use");
  }

  // The different sets of CPUs that objects of this kind have, neighbours beside each other; nodes of memory alone have
  // none, and several kinds of memory may be at the same CPUs.
  std::vector<CpuSet> sets(hwloc_obj_type_t type) const {
    std::vector<CpuSet> found;
    for (hwloc_obj_t object = nullptr; (object = hwloc_get_next_obj_by_type(handle, type, object)) != nullptr;) {
      if (hwloc_bitmap_iszero(object->cpuset) != 0) continue;
      const bool known = std::ranges::any_of(
          found, [&](const CpuSet& set) { return hwloc_bitmap_isequal(set.get(), object->cpuset) != 0; });
      if (!known) found.push_back(copy_of(object->cpuset));
    }
    return found;
  }

  // A machine that does not say what its cores are has one for every CPU.
  std::vector<CpuSet> cores() const {
    auto found = sets(HWLOC_OBJ_CORE);
    return found.empty() ? sets(HWLOC_OBJ_PU) : std::move(found);
  }

  std::vector<CpuSet> domains(Binding binding) const {
    std::vector<CpuSet> found;
    if (binding == Binding::core) found = cores();
    if (binding == Binding::numa) found = sets(HWLOC_OBJ_NUMANODE);
    if (binding == Binding::socket) found = sets(HWLOC_OBJ_PACKAGE);
    if (binding == Binding::cache) {
      for (const hwloc_obj_type_t type : kCacheTypes) {
        if (found.empty()) found = sets(type);
      }
    }
    if (found.empty()) found.push_back(copy_of(hwloc_topology_get_topology_cpuset(handle)));
    return found;
  }

  int cores_in(hwloc_const_bitmap_t set) const {
    return static_cast<int>(std::ranges::count_if(
        cores(), [set](const CpuSet& core) { return hwloc_bitmap_intersects(core.get(), set) != 0; }));
  }

  // The one node whose CPUs include these; -1 if they belong to several.
  int memory_node_of(hwloc_const_bitmap_t set) const {
    for (hwloc_obj_t node = nullptr;
         (node = hwloc_get_next_obj_by_type(handle, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
      if (hwloc_bitmap_isincluded(set, node->cpuset) != 0) return static_cast<int>(node->os_index);
    }
    return -1;
  }
};

Machine::Machine(std::unique_ptr<Topology> topology) : topology_(std::move(topology)) {}
Machine::Machine(Machine&&) noexcept = default;
Machine::~Machine() = default;

Machine Machine::here() {
  auto topology = std::make_unique<Topology>();
  check(hwloc_topology_load(topology->handle), "read this machine");
  const CpuSet allowed(hwloc_bitmap_alloc());
  const int bound = hwloc_get_cpubind(topology->handle, allowed.get(), HWLOC_CPUBIND_THREAD);
  topology->restrict_to(bound == 0 ? allowed.get() : nullptr);
  return Machine(std::move(topology));
}

Machine Machine::synthetic(const std::string& description, const std::string& allowed) {
  auto topology = std::make_unique<Topology>();
  check(hwloc_topology_set_synthetic(topology->handle, description.c_str()), "read the description of a machine");
  check(hwloc_topology_load(topology->handle), "make a machine");
  const CpuSet set(hwloc_bitmap_alloc());
  if (!allowed.empty()) check(hwloc_bitmap_list_sscanf(set.get(), allowed.c_str()), "read a list of CPUs");
  topology->restrict_to(allowed.empty() ? nullptr : set.get());
  return Machine(std::move(topology));
}

int Machine::cores() const { return std::max(1, static_cast<int>(topology_->cores().size())); }

std::vector<Placement> Machine::place(Binding binding, int ranks) const {
  std::vector<Placement> placements;
  if (binding == Binding::none) return std::vector<Placement>(static_cast<std::size_t>(ranks));
  const std::vector<CpuSet> domains = topology_->domains(binding);
  const auto count = static_cast<int>(domains.size());
  const int each = std::max(1, count / ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto first = static_cast<std::size_t>(std::int64_t{rank} * count / ranks);
    // All sockets are used, and equally many cores: see the header.
    const auto last = binding == Binding::core
                          ? first + static_cast<std::size_t>(each)
                          : std::max(first + 1, static_cast<std::size_t>((std::int64_t{rank} + 1) * count / ranks));
    const CpuSet set(hwloc_bitmap_alloc());
    for (std::size_t i = first; i < last; ++i) check(hwloc_bitmap_or(set.get(), set.get(), domains[i].get()), "add");
    placements.push_back({.mask = mask_of(set.get()),
                          .cpus = list_of(set.get()),
                          .cores = topology_->cores_in(set.get()),
                          .memory_node = binding == Binding::numa ? topology_->memory_node_of(set.get()) : -1});
  }
  std::vector<int> shares;
  for (const Placement& one : placements) {
    const auto same = std::ranges::count(placements, one.cpus, &Placement::cpus);
    shares.push_back(std::max(1, one.cores / static_cast<int>(same)));
  }
  for (std::size_t i = 0; i < shares.size(); ++i) placements[i].cores = shares[i];
  return placements;
}

std::vector<Placement> place_ranks(Binding binding, int ranks) {
  return binding == Binding::none ? std::vector<Placement>{} : Machine::here().place(binding, ranks);
}

int physical_cores() { return std::max(1, std::min(Machine::here().cores(), available_cores())); }

std::string describe(const std::vector<Placement>& placements, int first_rank) {
  constexpr std::size_t kMostShown = 16;
  if (placements.empty() || placements.front().mask.empty()) return "ranks are not bound to processor cores";
  std::string text;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const bool last = i + 1 == placements.size();
    if (i >= kMostShown - 1 && !last) continue;
    const bool skipped = last && placements.size() > kMostShown;
    text += fmt::format("{}{}rank {}: CPUs {}", i == 0 ? "" : "; ", skipped ? "...; " : "",
                        first_rank + static_cast<int>(i), placements[i].cpus);
    if (placements[i].memory_node >= 0) text += fmt::format(", memory of node {}", placements[i].memory_node);
  }
  return text;
}

}  // namespace lockstep::internal
