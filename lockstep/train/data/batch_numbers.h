// The random numbers of a batch. (seed, epoch, pass, indices) -> the draws of get_batch(), in any thread. While a
// loader assembles a batch, torch's random operators in that thread draw from the batch's generator: torch::rand,
// randint, dropout, bernoulli_ and all others. torch's default generator is neither read nor changed. Thread-safe; does
// not block.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/train/data/loader_inputs.h"

namespace lockstep {

// Within get_batch(): a seed for generators other than torch's (a std::mt19937, an image library's).
// Error{invalid_argument} in a thread that assembles no batch of a loader, such as one that the dataset starts.
std::uint64_t batch_seed();

namespace internal {

// The inputs of a pass's random numbers besides the batch.
struct PassNumbers {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::uint64_t pass = 0;  // of that epoch
};

// Zeros for numbers that a sampler, such as a std::vector, does not have.
template <class Sampler>
PassNumbers pass_numbers(const Sampler& sampler, std::uint64_t pass) {
  PassNumbers numbers{.pass = pass};
  if constexpr (requires { static_cast<std::uint64_t>(sampler.seed()); }) numbers.seed = sampler.seed();
  if constexpr (requires { static_cast<std::int64_t>(sampler.epoch()); }) numbers.epoch = sampler.epoch();
  return numbers;
}

// The same for the same samples: at any number of workers, and of ranks where a batch has the same samples at any.
std::uint64_t seed_of_batch(const PassNumbers& numbers, std::span<const std::int64_t> indices);

// While it exists, its thread draws the numbers of `seed`, and computes with one thread, so that parallel loops of the
// dataset draw from them as well. It belongs to the thread that makes it. They nest.
class BatchNumbers {
 public:
  explicit BatchNumbers(std::uint64_t seed);
  ~BatchNumbers();
  BatchNumbers(const BatchNumbers&) = delete;
  BatchNumbers& operator=(const BatchNumbers&) = delete;

  std::uint64_t seed() const { return seed_; }
  static BatchNumbers*& of_this_thread();  // the innermost; null: none

  struct Generators;  // torch's, each made by the first draw from it
  Generators& generators();

 private:
  const std::uint64_t seed_;
  BatchNumbers* const outer_;
  std::unique_ptr<Generators> generators_;
  int threads_before_ = 0;
};

}  // namespace internal

}  // namespace lockstep
