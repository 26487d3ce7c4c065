#include "lockstep/launch/outcome.h"

#include <algorithm>
#include <tuple>

#include "lockstep/base/format.h"

namespace lockstep {
namespace {

auto order_of_blame(const RankEnd& end) {
  return std::make_tuple(end.round, end.lost_a_peer, end.status.signal == 0, end.rank);
}

std::string others_were_stopped(const Outcome& outcome, const RankEnd& first) {
  std::vector<int> stopped;
  for (const RankEnd& end : outcome.ranks) {
    if (end.told_to_stop && end.rank != first.rank) stopped.push_back(end.rank);
  }
  if (stopped.empty()) return "";
  return fmt::format("; rank{} {} {} stopped because of it", stopped.size() == 1 ? "" : "s", fmt::join(stopped, ", "),
                     stopped.size() == 1 ? "was" : "were");
}

}  // namespace

const RankEnd* Outcome::first_failure() const {
  const RankEnd* first = nullptr;
  for (const RankEnd& end : ranks) {
    if (end.failure.empty() || end.told_to_stop) continue;
    if (first == nullptr || order_of_blame(end) < order_of_blame(*first)) first = &end;
  }
  return first;
}

std::string describe_failure(const RankEnd& end) {
  return fmt::format("rank {} (pid {}) {}", end.rank, end.pid, end.failure);
}

std::vector<std::string> report(const Outcome& outcome) {
  std::vector<std::string> lines;
  if (const RankEnd* first = outcome.first_failure()) {
    lines.push_back(fmt::format("{}, {:.2f} s after it started{}", describe_failure(*first),
                                seconds(first->after_start), others_were_stopped(outcome, *first)));
    if (!first->last_error_lines.empty()) {
      lines.push_back(fmt::format("the last lines of rank {} on standard error:", first->rank));
      for (const std::string& line : first->last_error_lines) lines.push_back(fmt::format("  | {}", line));
    }
  }
  if (outcome.stop_signal != 0) lines.push_back(fmt::format("stopped by {}", signal_name(outcome.stop_signal)));
  for (const RankEnd& end : outcome.ranks) {
    if (end.killed) {
      lines.push_back(fmt::format("rank {} (pid {}) did not stop in time and was killed", end.rank, end.pid));
    }
  }
  return lines;
}

}  // namespace lockstep
