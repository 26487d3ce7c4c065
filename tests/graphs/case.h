// One random case: a module, a schedule, and how it is synchronised. Values.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/train/ddp/options.h"
#include "tests/graphs/graph.h"
#include "tests/graphs/schedule.h"

namespace lockstep::testing {

enum class Hook { none, all_reduce, keeping };

struct Mode {
  int ranks = 2;
  bool over_links = false;
  bool buckets_off = false;
  double cap_mb = 0;  // 0: the default
  bool find_unused = false;
  bool skip_unused = false;
  bool static_graph = false;
  Hook hook = Hook::none;
  bool samples = false;       // weighted by them, and batches have random sizes
  bool mixed = false;         // bfloat16
  bool reduces_wide = false;  // mixed, reduced in float32
  bool skips_non_finite = false;
  bool sync_norm = false;
  bool divides_by_active = false;  // join()
  int shards = 0;                  // lockstep mode
};

struct Case {
  std::uint64_t seed = 0;
  Mode mode;
  Graph graph;
  Schedule schedule;
};

DdpOptions options_of(const Mode& mode);
// Where sums cannot be made in the same order as by hand, values may differ by this part of their size; else 0.
double tolerance_of(const Case& one);
std::string to_text(const Case& one);

}  // namespace lockstep::testing
