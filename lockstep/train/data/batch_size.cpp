#include "lockstep/train/data/batch_size.h"

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep {

std::size_t BatchSize::local(int world_size) const {
  if (samples_ == 0 || world_size < 1) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("the batch size is {} and the number of ranks is {}; both must be at least 1", samples_,
                            world_size));
  }
  if (scope_ == Scope::rank) return samples_;
  const auto ranks = static_cast<std::size_t>(world_size);
  if (samples_ % ranks != 0) {
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("a global batch of {} samples cannot be divided equally among {} ranks; use {}, for example",
                    samples_, ranks, (samples_ / ranks + 1) * ranks));
  }
  return samples_ / ranks;
}

}  // namespace lockstep
