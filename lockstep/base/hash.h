// Hashes that are equal in every process of a job.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::internal {

// Of a name; 0 is the hash of no name. FNV-1a, 64 bit (Fowler, Noll, Vo): names are short, and not chosen by an
// attacker.
constexpr std::uint64_t hash_of(std::string_view name) {
  if (name.empty()) return 0;
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash == 0 ? 1 : hash;
}

// Sebastiano Vigna's splitmix64, one step from a state: near states give values that lie far apart.
constexpr std::uint64_t splitmix64(std::uint64_t state) {
  state += 0x9e3779b97f4a7c15ULL;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9ULL;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebULL;
  return state ^ (state >> 31);
}

}  // namespace lockstep::internal
