#include "lockstep/train/data/batch_numbers.h"

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"

namespace lockstep {

std::uint64_t batch_seed() {
  const auto* numbers = internal::BatchNumbers::of_this_thread();
  if (numbers != nullptr) return numbers->seed();
  throw Error(ErrorKind::invalid_argument,
              "batch_seed: this thread does not assemble a batch of a loader; call it in get_batch(), and pass its "
              "value to threads that the dataset starts");
}

namespace internal {

std::uint64_t seed_of_batch(const PassNumbers& numbers, std::span<const std::int64_t> indices) {
  std::uint64_t seed = splitmix64(numbers.seed);
  seed = splitmix64(seed + static_cast<std::uint64_t>(numbers.epoch));
  seed = splitmix64(seed + numbers.pass);
  for (const std::int64_t index : indices) seed = splitmix64(seed + static_cast<std::uint64_t>(index));
  return seed;
}

BatchNumbers*& BatchNumbers::of_this_thread() {
  thread_local BatchNumbers* numbers = nullptr;
  return numbers;
}

}  // namespace internal

}  // namespace lockstep
