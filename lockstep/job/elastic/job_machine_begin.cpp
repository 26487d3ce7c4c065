// When an attempt begins. Its hosts get their ranks in slots.h.
#include <algorithm>
#include <iterator>

#include "lockstep/job/elastic/job_machine.h"

namespace lockstep::internal {
namespace {

// For so long hosts that were told to meet anew are waited for before the job is stopped.
constexpr Duration kReturn = std::chrono::seconds(10);

}  // namespace

// There is one host more than before.
void JobMachine::take_in(TimePoint now) {
  if (!enough_since_ && available() >= options_.least) enough_since_ = now;
  if (phase_ == Phase::running && static_cast<int>(slots_.size()) < options_.most) {
    end_because(Reason::newcomer, now);
  }
}

bool JobMachine::take_over(const Handover& handover) {
  if (phase_ != Phase::gathering || handover.generation <= generation_) return false;
  generation_ = handover.generation;
  restarts_ = handover.restarts;
  expected_ = handover.hosts;
  return true;
}

// All who were told to meet anew.
bool JobMachine::are_back() const { return std::ranges::count_if(hosts_, &HostEntry::returns) >= expected_; }

TimePoint JobMachine::stops_at() const { return insisted_ || are_back() ? waiting_since_ : waiting_since_ + kReturn; }

std::optional<TimePoint> JobMachine::begins_at() const {
  if (available() < options_.least || !enough_since_) return std::nullopt;
  const bool full = available() >= options_.most;
  const TimePoint at =
      full || steady_ || (expected_ > 0 && are_back()) ? *enough_since_ : *enough_since_ + options_.last_call;
  return fence_ ? std::max(at, *fence_) : at;
}

void JobMachine::begin() {
  std::vector<HostEntry> available;
  std::ranges::copy_if(hosts_, std::back_inserter(available), is_available);
  slots_ = assign_slots(available, options_.most);
  busy_.clear();
  for (const Slot& slot : slots_) {
    busy_.push_back(slot.host);
    had_slot_.insert(slot.host);
    entry(slot.host)->node_rank = slot.node_rank;
  }
  ++generation_;
  expected_ = 0;
  phase_ = Phase::running;
  reason_ = Reason::none;
  failed_at_.reset();
  failed_first_ = false;
  end_at_.reset();
  fence_.reset();
  told_ = false;
  lost_again_.clear();
  outcome_ = {.ranks = {}, .stop_exit_code = options_.stop_exit_code};
}

void JobMachine::gather_again(TimePoint now) {
  phase_ = Phase::gathering;
  steady_ = true;
  waiting_since_ = now;
  enough_since_.reset();
  if (available() >= options_.least) enough_since_ = now;
}

}  // namespace lockstep::internal
