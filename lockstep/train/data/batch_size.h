// BatchSize says whether a batch size counts samples per rank or over all ranks, and converts between the two.
// A value type. Error{invalid_argument} for a global batch that cannot be divided equally among the ranks: cutting it
// silently would train with another batch size than the one asked for.
#pragma once

#include <cstddef>

namespace lockstep {

class BatchSize {
 public:
  static BatchSize per_rank(std::size_t samples) { return BatchSize(samples, Scope::rank); }
  static BatchSize global(std::size_t samples) { return BatchSize(samples, Scope::world); }

  // Samples a rank takes per step.
  std::size_t local(int world_size) const;
  // Samples all ranks together take per step.
  std::size_t effective(int world_size) const { return local(world_size) * static_cast<std::size_t>(world_size); }

 private:
  enum class Scope { rank, world };
  BatchSize(std::size_t samples, Scope scope) : samples_(samples), scope_(scope) {}

  std::size_t samples_;
  Scope scope_;
};

}  // namespace lockstep
