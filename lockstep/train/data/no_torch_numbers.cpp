// Without libtorch there is only batch_seed().
#include "lockstep/train/data/batch_numbers.h"

namespace lockstep::internal {

struct BatchNumbers::Generators {};

BatchNumbers::BatchNumbers(std::uint64_t seed) : seed_(seed), outer_(of_this_thread()) { of_this_thread() = this; }
BatchNumbers::~BatchNumbers() { of_this_thread() = outer_; }

}  // namespace lockstep::internal
