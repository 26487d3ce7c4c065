#include "lockstep/comm/group/stop_agreement.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::internal {
namespace {

thread_local bool uneven_calls = false;

}  // namespace

int AgreementPace::proposal(TimePoint now) const {
  if (!last_) return 1;
  const Duration a_call = std::max((now - *last_) / calls_, Duration(1));
  const int at_most = std::min(2 * calls_, kMost);
  return static_cast<int>(std::clamp<std::int64_t>(kInterval / a_call, 1, at_most));
}

void AgreementPace::agreed(int calls, TimePoint now) {
  calls_ = left_ = calls;
  last_ = now;
}

bool StopAgreement::is_told() {
  if (!caught_) caught_.emplace(signals_);
  return is_agreed_ || stop_signal() != 0;
}

void StopAgreement::note_agreed() {
  is_agreed_ = true;
  if (caught_) caught_->keep();  // this rank's own signal may come yet, while the program ends
}

bool StopAgreement::ask(const ProcessGroup& group) {
  if (uneven_calls) {
    throw Error(ErrorKind::invalid_argument,
                "stop_requested() was called by the loader of a join(), where ranks may have different numbers of "
                "batches, so not all of them call it; give the world to join() (UnevenOptions::stop_with), and no "
                "stop_when to the loader",
                {.rank = group.rank(), .operation = "stop_requested"});
  }
  if (is_agreed_) return true;
  const bool is_told_here = is_told();
  if (group.size() == 1) return is_told_here;
  if (!pace_.is_due()) return false;
  struct {
    int is_told;
    int calls;  // negative, so that the greatest of all is the least wait
  } all{is_told_here ? 1 : 0, -pace_.proposal(steady_clock().now())};
  group.all_reduce(all, ReduceOp::max, {.name = "stop requested"});
  pace_.agreed(-all.calls, steady_clock().now());
  if (all.is_told != 0) note_agreed();
  return is_agreed_;
}

UnevenCalls::UnevenCalls() : before_(std::exchange(uneven_calls, true)) {}
UnevenCalls::~UnevenCalls() { uneven_calls = before_; }

}  // namespace lockstep::internal
