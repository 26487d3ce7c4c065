#include "lockstep/job/launch/job_report.h"

#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/machine.h"
#include "lockstep/job/launch/report_file.h"

namespace lockstep::internal {
namespace {

using nlohmann::json;

const char* name_of(Fault fault) {
  switch (fault) {
    case Fault::own: return "own";
    case Fault::disagreement: return "disagreement";
    case Fault::consequence: return "consequence";
  }
  return "";
}

template <class T>
json or_null(bool known, const T& value) {
  return known ? json(value) : json(nullptr);
}

json out_of_memory(const RankEnd& end) {
  if (end.status.signal != SIGKILL || end.killed) return false;
  const std::optional<bool>& known = end.failure.out_of_memory;
  return known ? json(*known) : json(nullptr);
}

json limits_of(const RankEnd& end) {
  if (!end.failure.limits) return nullptr;
  const LimitUse& use = *end.failure.limits;
  return {{"memory_bytes", or_null(use.limits.memory_bytes > 0, use.limits.memory_bytes)},
          {"memory_reached", use.memory_reached},
          {"peak_bytes", or_null(use.peak_bytes > 0, use.peak_bytes)},
          {"cpus", or_null(use.limits.cpus > 0, use.limits.cpus)},
          {"periods", use.periods},
          {"throttled_periods", use.throttled},
          {"throttled_s", static_cast<double>(use.throttled_us) / 1e6}};
}

json of_rank(const RankEnd& end) {
  const ExitStatus& status = end.status;
  const std::optional<std::int64_t>& lateness = end.failure.lateness_ns;
  return {{"rank", end.rank},
          {"host", end.host.empty() ? host_name() : end.host},
          {"pid", end.pid},
          {"exit_code", or_null(status.signal == 0, status.code)},
          {"signal", or_null(status.signal != 0, signal_name(status.signal))},
          {"core_dumped", status.core_dumped},
          {"peak_bytes", or_null(status.peak_bytes > 0, status.peak_bytes)},
          {"out_of_memory", out_of_memory(end)},
          {"limits", limits_of(end)},
          {"seconds", seconds(end.after_start)},
          {"failed", !end.failure.text.empty()},
          {"failure", or_null(!end.failure.text.empty(), failure_text(end))},
          {"fault", or_null(!end.failure.text.empty(), name_of(end.failure.fault))},
          {"blames_rank", or_null(end.failure.blamed >= 0, end.failure.blamed)},
          {"last_operation", or_null(!end.last_operation.empty(), end.last_operation)},
          {"lateness_s", lateness ? json(seconds(Duration(*lateness))) : json(nullptr)},
          {"error", or_null(!error_of(end).empty(), error_of(end))},
          {"told_to_stop", end.told_to_stop},
          {"killed", end.killed},
          {"was_suspended", end.was_suspended},
          {"stack", end.stack},
          {"last_lines", end.last_error_lines}};
}

json of_host(const LostHost& lost) {
  return {{"host", lost.host}, {"first_rank", lost.first_rank}, {"ranks", lost.ranks}, {"why", lost.why}};
}

json of_attempt(const Outcome& outcome) {
  json lost = json::array();
  for (const LostHost& host : outcome.lost) lost.push_back(of_host(host));
  json ranks = json::array();
  for (const RankEnd& end : outcome.ranks) ranks.push_back(of_rank(end));
  const RankEnd* cause = outcome.cause();
  return {{"cause", cause == nullptr ? json(nullptr) : of_rank(*cause)},
          {"hang", or_null(!outcome.hang.empty(), outcome.hang)},
          {"lost_hosts", std::move(lost)},
          {"report", report(outcome)},
          {"ranks", std::move(ranks)}};
}

}  // namespace

std::string JobReport::json(int exit_code) const {
  nlohmann::json attempts = nlohmann::json::array();
  for (const Outcome& outcome : attempts_) attempts.push_back(of_attempt(outcome));
  const int signal = attempts_.empty() ? 0 : attempts_.back().stop_signal;
  const nlohmann::json content{{"job", job_id_},
                               {"run_id", run_id_},
                               {"program", program_},
                               {"exit_code", exit_code},
                               {"stopped_by", or_null(signal != 0, signal_name(signal))},
                               {"attempts", std::move(attempts)}};
  // What ranks have printed need not be UTF-8.
  return content.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void JobReport::write(const std::string& path, int exit_code) const { write_report_file(path, json(exit_code)); }

}  // namespace lockstep::internal
