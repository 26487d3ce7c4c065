// What a sequence must leave: a model of DistributedDataParallel without buckets, hooks and communication, only lists
// of what each rank has contributed to a parameter. One thread computes all ranks, one after the other. It also decides
// which events can happen where they stand.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/sequences/sequence.h"

namespace lockstep::sequences {

using Values = std::vector<double>;

// A case whose result depends on rounding.
struct Unclear : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What all ranks have of a model after an event.
struct Expected {
  bool is_trained = false;  // false: nothing is known of it, as a new parameter is not synchronised yet
  bool is_settled = false;  // gradients are known: nothing waits to be averaged
  std::vector<std::string> names;
  std::vector<Values> parameters;
  std::vector<std::optional<Values>> gradients;
  std::vector<std::vector<Values>> buffers;  // by rank
};

// An event that has come up, as often as it has.
struct Occurrence {
  const Event* event = nullptr;
  bool happens = false;
  unsigned ranks = 0;   // that do it
  bool throws = false;  // NonFinite::fail
  Expected models[kModels] = {};
};

// In the order in which they come up: those of a join's body once for each iteration. The sequence must outlive them.
// Throws Unclear.
std::vector<Occurrence> expected_of(const Sequence& sequence);

}  // namespace lockstep::sequences
