// When the ranks of a job are told to stop. The same rules hold for the ranks of one host and for the hosts of a job.
// Pure.
#pragma once

#include <chrono>
#include <functional>
#include <span>

#include "lockstep/base/deadline.h"
#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {

// A request that is made again within this time is the same one: a terminal and a script may both pass on a signal.
inline constexpr Duration kSameRequest = std::chrono::seconds(1);

// How long a rank that another one's error names may take to end, after the first failure. Its host may be lost, which
// takes longer to notice.
inline constexpr Duration kMomentForBlamed = std::chrono::seconds(2);
inline constexpr Duration kMomentForBlamedHost = std::chrono::seconds(3);

// How long other ranks may take to end after the first failure, before they are told to stop, since they may report the
// cause: nothing if a signal ended a rank, which no other rank causes; `for_blamed` if a rank that runs is named.
Duration moment_after_failure(std::span<const RankEnd> ended, const std::function<bool(int rank)>& runs,
                              Duration for_blamed);

}  // namespace lockstep::internal
