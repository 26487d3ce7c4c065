// The TrainingLog of a run: metrics.jsonl in its directory, and the step times that ranks exchange. TrainingRun ->
// TrainingLog -> run_log.h -> file. All ranks have one and make the same calls; rank 0 writes. For one thread. A line
// that cannot be written is lost, with one warning: a training does not end for its log.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/ddp/ddp_base.h"
#include "lockstep/train/ddp/timing/step_reports.h"

namespace lockstep::internal {

class TrainingLog {
 public:
  TrainingLog(ProcessGroup group, std::filesystem::path file) : group_(std::move(group)), file_(std::move(file)) {}
  // By rank, for warnings.
  void set_hosts(std::vector<std::string> hosts) { hosts_ = std::move(hosts); }

  // Writes the run's first line, once: it resumes after this many steps, or begins. add_line() does it too.
  void begin(std::int64_t step);
  // Error{invalid_argument}: something else has the file's name. For rank 0.
  void require_file() const;
  void add_line(std::int64_t step, const std::string& line);
  // A step is over, or a checkpoint follows, after this many steps in all. Now and then a collective; see StepReports.
  void step_is_over(std::int64_t step, DdpBase& ddp) { tell(step, reports_.after_step(ddp.step_timer(), group_)); }
  void flush(std::int64_t step, DdpBase& ddp) { tell(step, reports_.flush(ddp.step_timer(), group_)); }

  // See TrainingRun.
  const std::optional<StepReport>& step_report() const { return report_; }
  std::string straggler_text() const;

 private:
  void write(const std::string& line);
  void tell(std::int64_t step, std::optional<StepReport> report);

  const ProcessGroup group_;
  const std::filesystem::path file_;
  std::vector<std::string> hosts_;
  bool has_begun_ = false;
  bool has_warned_ = false;
  StepReports reports_;
  std::optional<StepReport> report_;
};

}  // namespace lockstep::internal
