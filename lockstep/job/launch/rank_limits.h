// What each rank may use at most, as its user says it, and how far that was reached. Values; no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::internal {

struct RankLimits {
  std::int64_t memory_bytes = 0;  // --memory-per-rank; 0: none
  double cpus = 0;                // --cpus-per-rank; 0: none

  bool any() const { return memory_bytes > 0 || cpus > 0; }
};

struct LimitUse {
  RankLimits limits{};
  bool memory_reached = false;    // so that the kernel killed for it
  std::int64_t peak_bytes = 0;    // of all its processes together; 0: not known
  std::int64_t periods = 0;       // of 0.1 s, in which it ran
  std::int64_t throttled = 0;     // of these: it had used up what it may
  std::int64_t throttled_us = 0;  // how long its processors waited for the next one, together
};

// "8 GiB", "1.5 GiB", "500 MiB"
std::string bytes_text(std::int64_t bytes);
// "8 GiB of memory, 2 CPUs"
std::string describe(const RankLimits& limits);

// "8GiB", "500M", "1.5G", "2TB": as dd reads them, K, M, G, T and KiB ... are powers of 1024, KB ... of 1000, and
// nothing is bytes. Nothing if it is no size.
std::optional<std::int64_t> parse_size(std::string_view text);

// The number behind a name in a file of lines "name number".
std::optional<std::uint64_t> counter_in(std::string_view text, std::string_view name);

}  // namespace lockstep::internal
