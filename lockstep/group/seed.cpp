#include "lockstep/group/seed.h"

#include <ATen/Context.h>

#include <cstdlib>

namespace lockstep {
namespace {

// SplitMix64's step: torch's CPU generator takes the low 32 bits, so near seeds must differ there.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

}  // namespace

void seed_all(std::uint64_t seed) {
  at::manual_seed(seed);
  std::srand(static_cast<unsigned>(seed));
}

void seed_all(std::uint64_t seed, const ProcessGroup& group) {
  const auto rank = static_cast<std::uint64_t>(group.rank());
  seed_all(rank == 0 ? seed : mixed(mixed(seed) + rank));
}

}  // namespace lockstep
