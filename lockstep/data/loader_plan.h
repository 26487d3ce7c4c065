// LoaderPlan is the arithmetic of a loader: which samples make up which batch. LoaderOptions + order -> batches.
// A value type; pure; does not block. Options that make no sense throw Error{invalid_argument}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/base/clock.h"

namespace lockstep {

struct LoaderOptions {
  std::size_t batch_size = 64;         // samples per batch on this rank
  int workers = 2;                     // threads that assemble batches; 0: the loop does it itself
  int prefetch = 2;                    // batches each worker may be ahead of the loop
  bool drop_last = false;              // leave out a last batch that is not full
  std::size_t first_batch = 0;         // start here: how a run resumes in mid-epoch
  Duration timeout = Duration::max();  // for one batch; then Error{timeout}
  // Batches come in memory that copies to a GPU overlap with (.to(device, /*non_blocking=*/true)). Without a GPU: a
  // warning, and ordinary memory.
  bool pin_memory = false;
};

class LoaderPlan {
 public:
  LoaderPlan(std::size_t samples, const LoaderOptions& options);

  // Batches in one pass, counted from first_batch on.
  std::size_t batches() const { return batches_; }
  // The indices of one of them. REQUIRES: number < batches().
  std::span<const std::int64_t> batch(std::span<const std::int64_t> order, std::size_t number) const;
  // Throws Error{invalid_argument} unless `order` has as many indices as the sampler announced, all within the dataset.
  void check_order(std::span<const std::int64_t> order, std::size_t dataset_size) const;
  // From within a catch block: throws an Error that says which batch failed, with the caught exception nested in it.
  [[noreturn]] void throw_batch_failed(std::size_t number, std::span<const std::int64_t> indices) const;

 private:
  std::size_t samples_;
  std::size_t batch_size_;
  std::size_t first_batch_;
  std::size_t batches_;
};

}  // namespace lockstep
