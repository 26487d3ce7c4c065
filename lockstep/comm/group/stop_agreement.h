// Ranks agree whether a stop was requested, so that all end after the same step, whichever rank got the signal and
// when. signals -> StopAgreement -> World::stop_requested(). Used by one thread at a time; a call may be a collective.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/stop_signal.h"
#include "lockstep/comm/group/process_group.h"

namespace lockstep::internal {

// Which calls communicate, and which only count. Of long steps each does; of short ones one within kInterval, or every
// kMost-th, so that a step that suddenly takes long comes after few others. A value type; pure.
class AgreementPace {
 public:
  static constexpr Duration kInterval = std::chrono::milliseconds(50);
  static constexpr int kMost = 8;  // calls

  // Once a call.
  bool is_due() { return --left_ <= 0; }
  // How many calls this rank would wait for the next agreement. The ranks take the least of all.
  int proposal(TimePoint now) const;
  void agreed(int calls, TimePoint now);

 private:
  int calls_ = 1;
  int left_ = 1;
  std::optional<TimePoint> last_;
};

class StopAgreement {
 public:
  explicit StopAgreement(std::vector<int> signals) : signals_(std::move(signals)) {}

  // Collective, on all ranks of the group. Once true always true, without communication.
  bool ask(const ProcessGroup& group);

  // For callers that agree within another collective: what this rank contributes, and the result.
  bool is_told();
  void note_agreed();

 private:
  const std::vector<int> signals_;
  std::optional<StopSignals> caught_;  // from the first question on, so that a program that asks none dies of Ctrl-C
  AgreementPace pace_;
  std::atomic<bool> is_agreed_{false};
};

// While it lives, ranks may make different numbers of calls in this thread, so stop_requested() is refused.
class UnevenCalls {
 public:
  UnevenCalls();
  ~UnevenCalls();
  UnevenCalls(const UnevenCalls&) = delete;
  UnevenCalls& operator=(const UnevenCalls&) = delete;

 private:
  const bool before_;
};

}  // namespace lockstep::internal
