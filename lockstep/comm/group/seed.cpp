#include "lockstep/comm/group/seed.h"

#include <ATen/Context.h>

#include <cstdlib>

#include "lockstep/base/hash.h"

namespace lockstep {

using namespace internal;

void seed_all(std::uint64_t seed) {
  at::manual_seed(seed);
  std::srand(static_cast<unsigned>(seed));
}

void seed_all(std::uint64_t seed, const ProcessGroup& group) {
  const auto rank = static_cast<std::uint64_t>(group.rank());
  // torch's CPU generator takes the low 32 bits, so near seeds must differ there.
  seed_all(rank == 0 ? seed : splitmix64(splitmix64(seed) + rank));
}

}  // namespace lockstep
