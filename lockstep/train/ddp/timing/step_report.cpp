#include "lockstep/train/ddp/timing/step_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "lockstep/base/checked.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

// Thresholds of a straggler: the part of a step, and the share of the steps in which it is the last.
constexpr double kLateShare = 0.1, kLastShare = 0.6;
// Shorter delays are noise, however short the steps.
constexpr double kLeastLateSeconds = 5e-3;
constexpr double kSecondsUntilNext = 5;
constexpr std::int64_t kMostSteps = 1 << 14;

constexpr std::array kPhases = {StepPhase::data, StepPhase::forward, StepPhase::backward, StepPhase::optimizer,
                                StepPhase::compute};

// The transmitted form, followed by the waits.
struct WindowHead {
  std::int64_t steps;
  double computing[kStepPhases];
  double waiting, communicating, hidden;
  std::int64_t waits;
};

double median(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

StepWindow decode_window(std::span<const std::uint8_t> bytes, int rank) {
  const Origin origin("step times", rank);
  const std::size_t room = (bytes.size() - sizeof(WindowHead)) / sizeof(float);
  WindowHead head;
  std::memcpy(&head, bytes.data(), sizeof head);
  StepWindow window;
  window.times.steps = checked_between<std::int64_t>(head.steps, 0, INT64_MAX, "number of steps", origin);
  for (const StepPhase phase : kPhases) {
    part_of(window.times, phase) = checked_weight(head.computing[static_cast<int>(phase)], to_string(phase), origin);
  }
  window.times.waiting = checked_weight(head.waiting, "time of waiting", origin);
  window.times.communicating = checked_weight(head.communicating, "time of communicating", origin);
  window.times.hidden = checked_weight(head.hidden, "time of hidden communication", origin);
  window.waits.resize(checked_size(head.waits, room, "number of waits", origin));
  // An empty vector has no memory, and memcpy() takes no null pointer.
  if (!window.waits.empty()) {
    std::memcpy(window.waits.data(), bytes.data() + sizeof head, window.waits.size() * sizeof(float));
  }
  for (const float wait : window.waits) checked_weight(wait, "wait of a step", origin);
  return window;
}

// By rank.
std::vector<Lateness> lateness_of(const std::vector<StepWindow>& windows) {
  const std::size_t ranks = windows.size();
  std::size_t steps = windows.front().waits.size();
  for (const StepWindow& window : windows) steps = std::min(steps, window.waits.size());
  std::vector<Lateness> all(ranks);
  if (ranks < 2 || steps == 0) return all;
  std::vector<std::vector<double>> charged(ranks, std::vector<double>(steps));
  for (std::size_t step = 0; step < steps; ++step) {
    std::size_t last = 0;
    double sum = 0;
    const auto wait_of = [&](std::size_t rank) {
      return windows[rank].waits[windows[rank].waits.size() - steps + step];
    };
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      sum += wait_of(rank);
      if (wait_of(rank) < wait_of(last)) last = rank;
    }
    const double own = wait_of(last);
    const double late = (sum - own) / static_cast<double>(ranks - 1) - own;
    if (late <= 0) continue;  // all waited equally long
    charged[last][step] = late;
    all[last].mean += late / static_cast<double>(steps);
    all[last].share += 1 / static_cast<double>(steps);
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) all[rank].typical = median(charged[rank]);
  return all;
}

Straggler straggler_at(std::size_t rank, const std::vector<RankSteps>& ranks) {
  Straggler found{.rank = static_cast<int>(rank), .part = {}};
  for (const StepPhase phase : kPhases) {
    double others = 0;
    for (std::size_t other = 0; other < ranks.size(); ++other) {
      if (other != rank) others += part_of(ranks[other].times, phase) / static_cast<double>(ranks.size() - 1);
    }
    const double own = part_of(ranks[rank].times, phase);
    if (!found.part.empty() && own - others <= found.part_own - found.part_others) continue;
    found.part = to_string(phase);
    found.part_own = own;
    found.part_others = others;
  }
  return found;
}

// How much longer a rank computes in a step than the others, on average.
double excess_of(std::size_t rank, const std::vector<RankSteps>& ranks) {
  double others = 0, own = 0;
  for (std::size_t each = 0; each < ranks.size(); ++each) {
    for (const StepPhase phase : kPhases) (each == rank ? own : others) += part_of(ranks[each].times, phase);
  }
  return own - others / static_cast<double>(ranks.size() - 1);
}

double longest_step(const StepReport& report) {
  double longest = 0;
  for (const RankSteps& each : report.ranks) longest = std::max(longest, each.times.total());
  return longest;
}

}  // namespace

std::size_t window_bytes(std::size_t steps) {
  return sizeof(WindowHead) + std::min(steps, StepWindow::kMostWaits) * sizeof(float);
}

void encode_window(const StepWindow& window, std::span<std::uint8_t> bytes) {
  std::memset(bytes.data(), 0, bytes.size());
  const std::size_t waits = std::min((bytes.size() - sizeof(WindowHead)) / sizeof(float), window.waits.size());
  WindowHead head{.steps = window.times.steps,
                  .computing = {},
                  .waiting = window.times.waiting,
                  .communicating = window.times.communicating,
                  .hidden = window.times.hidden,
                  .waits = static_cast<std::int64_t>(waits)};
  for (const StepPhase phase : kPhases) head.computing[static_cast<int>(phase)] = part_of(window.times, phase);
  std::memcpy(bytes.data(), &head, sizeof head);
  const float* newest = window.waits.data() + (window.waits.size() - waits);
  if (waits != 0) std::memcpy(bytes.data() + sizeof head, newest, waits * sizeof(float));
}

std::vector<StepWindow> decode_windows(std::span<const std::uint8_t> told, std::size_t ranks) {
  const std::size_t length = told.size() / ranks;
  std::vector<StepWindow> windows;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    checked_between(length, sizeof(WindowHead), told.size(), "length", Origin("step times", static_cast<int>(rank)));
    windows.push_back(decode_window(told.subspan(rank * length, length), static_cast<int>(rank)));
  }
  return windows;
}

StepReport report_on(const std::vector<StepWindow>& windows, std::optional<int> before) {
  StepReport report;
  const std::vector<Lateness> lateness = lateness_of(windows);
  std::size_t latest = 0;
  for (std::size_t rank = 0; rank < windows.size(); ++rank) {
    report.steps = std::max(report.steps, windows[rank].times.steps);
    report.ranks.push_back({windows[rank].times.mean(), lateness[rank]});
    if (lateness[rank].typical > lateness[latest].typical) latest = rank;
  }
  const bool is_still_late = before == static_cast<int>(latest);
  const Lateness& late = lateness[latest];
  const double limit = std::max(longest_step(report) * kLateShare, kLeastLateSeconds) / (is_still_late ? 2 : 1);
  const bool is_late = late.typical >= limit && (is_still_late || late.share >= kLastShare);
  // If its own work does not explain it, the machine has delayed different ranks at different times.
  if (is_late && excess_of(latest, report.ranks) >= late.typical / 2) {
    report.straggler = straggler_at(latest, report.ranks);
  }
  return report;
}

std::int64_t steps_until_next(const StepReport& report) {
  const double longest = longest_step(report);
  if (longest == 0) return kStepsUntilFirst;  // nothing is known yet
  const double steps = kSecondsUntilNext / longest;
  return static_cast<std::int64_t>(
      std::clamp(steps, static_cast<double>(kLeastStepsOfReport), static_cast<double>(kMostSteps)));
}

std::optional<std::string> change_of_straggler(const StepReport& report, std::optional<int> before,
                                               const std::vector<std::string>& hosts) {
  const auto name = [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    return index < hosts.size() ? fmt::format("rank {} (host {})", rank, hosts[index]) : fmt::format("rank {}", rank);
  };
  if (!report.straggler) {
    if (!before) return std::nullopt;
    return fmt::format("{} is no longer a straggler", name(*before));
  }
  const Straggler& found = *report.straggler;
  if (before == found.rank) return std::nullopt;
  const RankSteps& steps = report.ranks[static_cast<std::size_t>(found.rank)];
  return fmt::format(
      "{} delays the others: it was last in {:.0f} % of the last {} steps, on average {:.2f} ms later than the "
      "others, in steps of {:.2f} ms; it spends {:.2f} ms a step on {}, the others {:.2f} ms",
      name(found.rank), 100 * steps.late.share, report.steps, 1e3 * steps.late.mean, 1e3 * steps.times.total(),
      1e3 * found.part_own, found.part, 1e3 * found.part_others);
}

}  // namespace lockstep::internal
