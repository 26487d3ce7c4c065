// A 64-bit hash of a name, equal in every process of a job. 0 is the hash of no name.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// FNV-1a, 64 bit (Fowler, Noll, Vo): names are short, and not chosen by an attacker.
constexpr std::uint64_t hash_of(std::string_view name) {
  if (name.empty()) return 0;
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash == 0 ? 1 : hash;
}

}  // namespace lockstep
