// Random choices that depend on a seed alone. Values; one thread.
#pragma once

#include <cstdint>

namespace lockstep::testing {

// Sebastiano Vigna's splitmix64.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t value = state_ += 0x9e3779b97f4a7c15ULL;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
  }
  int below(int count) { return static_cast<int>(next() % static_cast<std::uint64_t>(count)); }
  bool percent(int chance) { return below(100) < chance; }
  float between_ones() { return static_cast<float>(static_cast<double>(next() >> 11) * 0x1p-52 - 1); }

 private:
  std::uint64_t state_;
};

}  // namespace lockstep::testing
