// What is known of a rank while its job runs. A value.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/base/observe/live_numbers.h"

namespace lockstep::internal {

enum class RankState : std::uint8_t {
  starting,  // it has not begun to record: it loads libraries, or does not use Lockstep
  running,
  succeeded,
  failed,  // or was stopped
};
inline constexpr int kRankStates = 4;

struct RankStatus {
  int rank = 0;  // of the job
  RankState state = RankState::starting;
  RankNumbers numbers = {};
  // How long after the first rank of its host it began its last collectives, on average; nothing: not known.
  std::optional<std::int64_t> lateness_ns = {};
};

}  // namespace lockstep::internal
