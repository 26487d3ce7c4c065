#include "lockstep/train/ddp/timing/step_reports.h"

#include <ATen/ops/empty.h>

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/comm/group/believed.h"

namespace lockstep::internal {
namespace {

std::span<std::uint8_t> whole(const at::Tensor& bytes) {
  return {bytes.mutable_data_ptr<std::uint8_t>(), static_cast<std::size_t>(bytes.numel())};
}

std::vector<StepWindow> gather(const StepWindow& own, std::int64_t steps, const ProcessGroup& group) {
  if (group.size() == 1) return {own};
  const auto length = static_cast<std::int64_t>(window_bytes(static_cast<std::size_t>(steps)));
  const at::Tensor mine = at::empty({length}, at::kByte), all = at::empty({group.size() * length}, at::kByte);
  encode_window(own, whole(mine));
  group.all_gather_into(all, mine, {.name = "times of steps"});
  return believed(group, [&] { return decode_windows(whole(all), static_cast<std::size_t>(group.size())); });
}

}  // namespace

std::optional<StepReport> StepReports::after_step(StepTimer& timer, const ProcessGroup& group) {
  timer.step_ends();
  if (++steps_ < due_) return std::nullopt;
  return flush(timer, group);
}

std::optional<StepReport> StepReports::flush(StepTimer& timer, const ProcessGroup& group) {
  if (steps_ < kLeastStepsOfReport) return std::nullopt;
  const std::vector<StepWindow> windows = gather(timer.take_window(), steps_, group);
  timer.leave_out();
  before_ = straggler_;
  StepReport report = report_on(windows, before_);
  straggler_ = report.straggler ? std::optional(report.straggler->rank) : std::nullopt;
  steps_ = 0;
  due_ = steps_until_next(report);
  return report;
}

}  // namespace lockstep::internal
