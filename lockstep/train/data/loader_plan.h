// LoaderPlan is the arithmetic of a loader: which samples make up which batch. LoaderOptions + order -> batches.
// A value type; pure; does not block. Invalid options throw Error{invalid_argument}.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "lockstep/base/clock.h"

namespace lockstep {

struct LoaderOptions {
  std::size_t batch_size = 64;  // samples per batch on this rank
  int workers = 2;              // threads that assemble batches; 0: the loop does it itself
  int prefetch = 2;             // batches each worker may be ahead of the loop
  bool drop_last = false;       // leave out a last batch that is not full
  // The first pass starts here: how a run resumes in mid-epoch, at TrainingPosition::batch. Later ones are whole.
  std::int64_t first_batch = 0;
  Duration timeout = Duration::max();  // for one batch; then Error{timeout}
  // Batches come in memory that copies to a GPU overlap with (.to(device, /*non_blocking=*/true)). Without a GPU: a
  // warning, and ordinary memory.
  bool pin_memory = false;
  // Called in the loop's thread before each batch but the first: true ends the pass, with the rest not taken. With [&]
  // { return world.stop_requested(); } all ranks' passes end after the same step; they need the same number of batches
  // then, else see join().
  std::function<bool()> stop_when = {};
};

// The progress of a sampler's passes, in indices of its order. Copies of a sampler share it.
struct SamplerPosition {
  std::size_t taken = 0;     // by the program in the newest pass
  std::size_t start = 0;     // of the next pass; not 0 after torch::load()
  std::uint64_t passes = 0;  // begun in this epoch
};
// Of a sampler that keeps none: `other`.
template <class Sampler>
std::shared_ptr<SamplerPosition> position_of(Sampler& sampler, const std::shared_ptr<SamplerPosition>& other) {
  if constexpr (requires {
                  { sampler.position() } -> std::convertible_to<std::shared_ptr<SamplerPosition>>;
                }) {
    return sampler.position();
  } else {
    return other;
  }
}

class LoaderPlan {
 public:
  // start: indices at the start of the order that the pass leaves out; first_batch counts from there.
  LoaderPlan(std::size_t samples, const LoaderOptions& options, std::size_t start = 0);

  // Batches in one pass, counted from first_batch on.
  std::size_t batches() const { return batches_; }
  // The indices of one of them. REQUIRES: number < batches().
  std::span<const std::int64_t> batch(std::span<const std::int64_t> order, std::size_t number) const;
  // The position in the order before it, and after it. REQUIRES: number < batches().
  std::size_t begin_of(std::size_t number) const { return start_ + (first_batch_ + number) * batch_size_; }
  std::size_t end_of(std::size_t number) const;
  // Throws Error{invalid_argument} unless `order` has as many indices as the sampler announced, all within the dataset.
  void check_order(std::span<const std::int64_t> order, std::size_t dataset_size) const;
  // From within a catch block: throws an Error that says which batch failed, with the caught exception nested in it.
  [[noreturn]] void throw_batch_failed(std::size_t number, std::span<const std::int64_t> indices) const;

 private:
  std::size_t samples_;
  std::size_t batch_size_;
  std::size_t first_batch_;
  std::size_t start_;
  std::size_t batches_;
};

}  // namespace lockstep
