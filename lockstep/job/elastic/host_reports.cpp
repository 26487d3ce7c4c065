#include "lockstep/job/elastic/host_reports.h"

#include <cstdint>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/job/launch/program_path.h"

namespace lockstep::internal {

void post_sight(Coordinator& coordinator, int generation, HostSight sight) {
  const std::int64_t now_ns = steady_clock().now().time_since_epoch().count();
  for (RankSight& rank : sight.ranks) coordinator.post(RankStands{generation, now_ns, std::move(rank)});
  coordinator.post(HostStands{generation, sight.is_still, now_ns, sight.last_event.time_since_epoch().count()});
}

void post_failed_start(Coordinator& coordinator, const StartRanks& start, int ranks, const Error& error) {
  const auto* not_executed = dynamic_cast<const ExecFailed*>(&error);
  for (int rank = start.first_rank; rank < start.first_rank + ranks; ++rank) {
    RankEnd end;
    end.rank = rank;
    end.pid = kNotStarted;
    end.status.code = not_executed == nullptr ? 1 : not_executed->shell_code();
    end.failure.text = fmt::format("could not be started: {}", error.what());
    end.told_to_stop = rank != start.first_rank;
    coordinator.post(RankEnded{start.generation, end});
  }
}

}  // namespace lockstep::internal
