// Seeds to cases. Pure.
#pragma once

#include <cstdint>

#include "tests/graphs/case.h"

namespace lockstep::testing {

Case generate(std::uint64_t seed);

}  // namespace lockstep::testing
