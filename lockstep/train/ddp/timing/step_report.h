// How the ranks of a group spent their steps, and which ones were late. windows -> bytes -> collective -> bytes of all
// ranks -> report. Pure, and without torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/train/ddp/timing/step_timer.h"
#include "lockstep/train/ddp/timing/step_times.h"

namespace lockstep {

// How late a rank came to the collectives of its steps. In each step the lateness is that of the rank that waited
// least, which is the one that arrived last: how much longer the others waited, on average. So it needs no common
// clock, and is the same measure over shared memory and between hosts.
struct Lateness {
  double mean = 0;     // seconds a step, over all steps
  double typical = 0;  // the median
  double share = 0;    // of the steps: in which it came last
};

struct RankSteps {
  StepTimes times;  // the mean of a step
  Lateness late;
};

// A rank that delays the others in most steps, by a tenth of a step and 5 ms or more, since it computes for longer.
struct Straggler {
  int rank = 0;
  std::string part;     // that takes longer than on the others: "data", "forward", ...
  double part_own = 0;  // seconds of a step
  double part_others = 0;
};

struct StepReport {
  std::int64_t steps = 0;
  std::vector<RankSteps> ranks;  // by rank
  std::optional<Straggler> straggler;
};

namespace internal {

// The length of a window with the waits of this number of steps.
std::size_t window_bytes(std::size_t steps);
// REQUIRES: bytes.size() is window_bytes() of some number of steps. Of more waits the newest are sent.
void encode_window(const StepWindow& window, std::span<std::uint8_t> bytes);
// `told`: the windows of all ranks, of equal length. Error{corrupt_data} names the rank whose window has a number that
// is negative or not finite, or more waits than it has room for.
std::vector<StepWindow> decode_windows(std::span<const std::uint8_t> told, std::size_t ranks);

// One window a rank. before: the straggler of the previous report; it remains one until it is half as late.
StepReport report_on(const std::vector<StepWindow>& windows, std::optional<int> before = {});
// After how many steps the next report is due: seldom enough to cost nothing, every 5 s or so.
std::int64_t steps_until_next(const StepReport& report);
inline constexpr std::int64_t kStepsUntilFirst = 20, kLeastStepsOfReport = 10;

// The log line if the straggler has changed; nothing if not. hosts: by rank.
std::optional<std::string> change_of_straggler(const StepReport& report, std::optional<int> before,
                                               const std::vector<std::string>& hosts);

}  // namespace internal
}  // namespace lockstep
