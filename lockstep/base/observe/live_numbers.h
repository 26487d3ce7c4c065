// The counters of a rank for the job's metrics, in its flight recording: the rank adds, the launcher reads at any
// time. rank -> LiveNumbers -> RankNumbers -> metrics. Any thread may add; nothing blocks, allocates or throws, and an
// addition costs some nanoseconds.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/observe/flight_phase.h"

namespace lockstep::internal {

// The name of a reported value: 1 to 31 letters, digits, and _ . / -
inline constexpr std::size_t kMostValueNameBytes = 31;
inline constexpr std::size_t kMostValues = 16;
bool is_value_name(std::string_view name);

// A value; times in nanoseconds.
struct RankNumbers {
  std::uint64_t operations = 0;                          // collectives and messages that were begun
  std::uint64_t steps = 0;                               // of all wrapped models
  std::uint64_t samples = 0;                             // of batches that had a backward
  std::array<std::uint64_t, kStepPhases> phase_ns = {};  // without waiting and communicating
  std::uint64_t waiting_ns = 0;
  std::uint64_t communicating_ns = 0;
  std::uint64_t hidden_ns = 0;  // communication while the rank computed
  std::uint64_t checkpoints = 0;
  std::uint64_t checkpoint_wall_ns = 0;                     // when the last one was complete; 0: there is none
  std::vector<std::pair<std::string, double>> values = {};  // that the program has reported, by different names

  // Of an attempt before this one: everything but values, which are this one's.
  void add_earlier(const RankNumbers& earlier);
};

namespace flight {

struct LiveValue {
  std::atomic<std::uint32_t> state;  // 0 free, 1 being named, 2 named
  char name[kMostValueNameBytes + 1];
  std::atomic<std::uint64_t> bits;  // of the double
};

struct LiveNumbers {
  std::atomic<std::uint64_t> steps;
  std::atomic<std::uint64_t> samples;
  std::atomic<std::uint64_t> phase_ns[kStepPhases];
  std::atomic<std::uint64_t> waiting_ns;
  std::atomic<std::uint64_t> communicating_ns;
  std::atomic<std::uint64_t> hidden_ns;
  std::atomic<std::uint64_t> checkpoints;
  std::atomic<std::uint64_t> checkpoint_wall_ns;
  LiveValue values[kMostValues];

  void add(const FlightPhase& phase) noexcept;
  void add_checkpoint(std::uint64_t wall_ns) noexcept;
  // False if there is no place for another name. REQUIRES: is_value_name(name).
  bool set(std::string_view name, double value) noexcept;
  // Another process may have written it: numbers are limited, and values with other names left out.
  RankNumbers read() const;
};

}  // namespace flight

// The program has received a batch of this many samples. The next backward counts them; evaluation has none.
void take_samples(std::uint64_t samples) noexcept;
// A checkpoint is complete, on this rank's part.
void count_checkpoint() noexcept;

}  // namespace lockstep::internal
