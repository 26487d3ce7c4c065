#include "lockstep/base/observe/live_numbers.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <utility>

#include "lockstep/base/observe/process_recorder.h"

namespace lockstep::internal {
namespace {

constexpr std::uint32_t kBeingNamed = 1;
constexpr std::uint32_t kNamed = 2;
constexpr int kMostLooks = 10'000;
constexpr std::uint64_t kLastMoment = std::uint64_t{1} << 62;
constexpr std::uint64_t kMostCounted = std::uint64_t{1} << 56;  // so that sums of attempts do not overflow

std::atomic<std::uint64_t> g_samples_taken{0};  // of the batch that the program has, until a backward counts them

void add_to(std::atomic<std::uint64_t>& counter, std::int64_t amount) noexcept {
  counter.fetch_add(static_cast<std::uint64_t>(amount), std::memory_order_relaxed);
}

std::uint64_t counted(const std::atomic<std::uint64_t>& counter) {
  return std::min(counter.load(std::memory_order_relaxed), kMostCounted);
}

std::string_view name_of(const flight::LiveValue& value) {
  return {value.name, ::strnlen(value.name, sizeof value.name)};
}

}  // namespace

bool is_value_name(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_./-").find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= kMostValueNameBytes && std::ranges::all_of(name, fits);
}

void RankNumbers::add_earlier(const RankNumbers& earlier) {
  operations += earlier.operations;
  steps += earlier.steps;
  samples += earlier.samples;
  for (std::size_t phase = 0; phase < phase_ns.size(); ++phase) phase_ns[phase] += earlier.phase_ns[phase];
  waiting_ns += earlier.waiting_ns;
  communicating_ns += earlier.communicating_ns;
  hidden_ns += earlier.hidden_ns;
  checkpoints += earlier.checkpoints;
  checkpoint_wall_ns = std::max(checkpoint_wall_ns, earlier.checkpoint_wall_ns);
}

namespace flight {

void LiveNumbers::add(const FlightPhase& phase) noexcept {
  add_to(phase_ns[static_cast<std::size_t>(phase.phase)],
         phase.end_ns - phase.begin_ns - phase.waiting_ns - phase.communicating_ns);
  add_to(waiting_ns, phase.waiting_ns);
  add_to(communicating_ns, phase.communicating_ns);
  add_to(hidden_ns, phase.hidden_ns);
  if (phase.phase != StepPhase::backward && phase.phase != StepPhase::compute) return;
  samples.fetch_add(g_samples_taken.exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
}

void LiveNumbers::add_checkpoint(std::uint64_t wall_ns) noexcept {
  checkpoint_wall_ns.store(wall_ns, std::memory_order_relaxed);
  checkpoints.fetch_add(1, std::memory_order_relaxed);
}

bool LiveNumbers::set(std::string_view name, double value) noexcept {
  for (LiveValue& place : values) {
    std::uint32_t state = place.state.load(std::memory_order_acquire);
    if (state == 0 && place.state.compare_exchange_strong(state, kBeingNamed, std::memory_order_acquire)) {
      std::memcpy(place.name, name.data(), name.size());
      place.state.store(kNamed, std::memory_order_release);
      state = kNamed;
    }
    // Another thread names this place right now, in a few instructions.
    for (int i = 0; i < kMostLooks && state == kBeingNamed; ++i) state = place.state.load(std::memory_order_acquire);
    if (name_of(place) != name) continue;
    place.bits.store(std::bit_cast<std::uint64_t>(value), std::memory_order_relaxed);
    return true;
  }
  return false;
}

RankNumbers LiveNumbers::read() const {
  RankNumbers numbers{.steps = counted(steps),
                      .samples = counted(samples),
                      .waiting_ns = counted(waiting_ns),
                      .communicating_ns = counted(communicating_ns),
                      .hidden_ns = counted(hidden_ns),
                      .checkpoints = counted(checkpoints),
                      .checkpoint_wall_ns = std::min(checkpoint_wall_ns.load(std::memory_order_relaxed), kLastMoment)};
  for (std::size_t phase = 0; phase < numbers.phase_ns.size(); ++phase) {
    numbers.phase_ns[phase] = counted(phase_ns[phase]);
  }
  for (const LiveValue& place : values) {
    if (place.state.load(std::memory_order_acquire) != kNamed) continue;
    const std::string name(name_of(place));
    const auto has_name = [&](const auto& value) { return value.first == name; };
    if (!is_value_name(name) || std::ranges::any_of(numbers.values, has_name)) continue;
    numbers.values.emplace_back(name, std::bit_cast<double>(place.bits.load(std::memory_order_relaxed)));
  }
  return numbers;
}

}  // namespace flight

void take_samples(std::uint64_t samples) noexcept { g_samples_taken.store(samples, std::memory_order_relaxed); }

void count_checkpoint() noexcept {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto wall_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  if (is_watched()) process_recorder().memory().header().live.add_checkpoint(static_cast<std::uint64_t>(wall_ns));
}

}  // namespace lockstep::internal
