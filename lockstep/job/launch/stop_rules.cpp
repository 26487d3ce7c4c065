#include "lockstep/job/launch/stop_rules.h"

namespace lockstep::internal {
namespace {

constexpr Duration kMoment = std::chrono::milliseconds(250);

}  // namespace

Duration moment_after_failure(std::span<const RankEnd> ended, const std::function<bool(int rank)>& runs,
                              Duration for_blamed) {
  Duration moment = kMoment;
  for (const RankEnd& end : ended) {
    if (end.failure.text.empty() || end.told_to_stop) continue;
    if (was_struck(end.status)) return {};
    if (end.failure.blamed >= 0 && runs(end.failure.blamed)) moment = for_blamed;
  }
  return moment;
}

}  // namespace lockstep::internal
