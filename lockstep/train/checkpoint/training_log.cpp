#include "lockstep/train/checkpoint/training_log.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/train/checkpoint/run_log.h"
#include "lockstep/train/checkpoint/together.h"

namespace lockstep::internal {

void TrainingLog::begin(std::int64_t step) {
  if (std::exchange(has_begun_, true) || group_.rank() != 0) return;
  RunFacts facts = facts_of_this_process();
  facts.step = step;
  facts.threads = at::get_num_threads();
  facts.versions["torch"] = TORCH_VERSION;
  write(run_line(facts));
  if (facts.restarts != 0) write(restart_line(facts));
}

void TrainingLog::require_file() const {
  std::error_code unknown;
  const auto type = std::filesystem::symlink_status(file_, unknown).type();
  if (type == std::filesystem::file_type::not_found || type == std::filesystem::file_type::regular) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("cannot write the log of a run: {} is not a regular file; move it away, or name another "
                          "directory",
                          file_.string()));
}

void TrainingLog::write(const std::string& line) {
  const auto failure = error_in([&] { append_line(file_, line); });
  if (!failure || std::exchange(has_warned_, true)) return;
  log_warning(
      fmt::format("{}; training continues without these lines, which `lockstep report` will lack", failure->what()));
}

void TrainingLog::add_line(std::int64_t step, const std::string& line) {
  begin(step);
  if (group_.rank() == 0) write(line);
}

void TrainingLog::tell(std::int64_t step, std::optional<StepReport> report) {
  if (!report) return;
  report_ = std::move(report);
  add_line(step, steps_line(step, *report_));
  const auto change = change_of_straggler(*report_, reports_.straggler_before(), hosts_);
  if (change && group_.rank() == 0) log(report_->straggler ? LogLevel::warning : LogLevel::info, *change);
}

std::string TrainingLog::straggler_text() const {
  if (!report_ || !report_->straggler) return "";
  const Straggler& straggler = *report_->straggler;
  const Lateness& late = report_->ranks[static_cast<std::size_t>(straggler.rank)].late;
  return fmt::format("  rank {} is late by {:.1f} ms ({})", straggler.rank, 1e3 * late.mean, straggler.part);
}

}  // namespace lockstep::internal
