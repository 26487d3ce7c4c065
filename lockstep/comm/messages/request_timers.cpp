#include "lockstep/comm/messages/request_timers.h"

#include <algorithm>
#include <chrono>

namespace lockstep::internal {
namespace {

// A peer is asked for a heartbeat this long before a deadline, so that the error can tell how it fares; and this
// long before a report.
constexpr Duration kBeforeDeadline = std::chrono::milliseconds(500);
constexpr Duration kBeforeReport = std::chrono::milliseconds(300);

TimePoint when_to_ask(const Operation& operation) {
  const TimePoint end = operation.deadline.when();
  return end - std::min(kBeforeDeadline, (end - operation.start) / 2);
}

TimePoint when_to_report(const Operation& operation) {
  const Duration wait = operation.reports.next();
  return wait >= TimePoint::max() - operation.start ? TimePoint::max() : operation.start + wait;
}

}  // namespace

void RequestTimers::add(const Operation& operation) {
  if (!operation.deadline.is_never()) {
    deadlines_.emplace(operation.deadline, operation.number);
    questions_.emplace(when_to_ask(operation), operation.number);
  }
  add_report(operation);
}

void RequestTimers::remove(const Operation& operation) {
  if (!operation.deadline.is_never()) {
    deadlines_.erase({operation.deadline, operation.number});
    questions_.erase({when_to_ask(operation), operation.number});
  }
  reports_.erase({when_to_report(operation), operation.number});
  questions_.erase({when_to_report(operation) - kBeforeReport, operation.number});
}

void RequestTimers::add_report(const Operation& operation) {
  const TimePoint when = when_to_report(operation);
  if (when == TimePoint::max() || operation.deadline < Deadline::at(when)) return;
  reports_.emplace(when, operation.number);
  questions_.emplace(when - kBeforeReport, operation.number);
}

std::optional<std::uint64_t> RequestTimers::expired(TimePoint now) const {
  if (deadlines_.empty() || !deadlines_.begin()->first.expired(now)) return std::nullopt;
  return deadlines_.begin()->second;
}

std::optional<std::uint64_t> RequestTimers::take(Times& times, TimePoint now) {
  if (times.empty() || times.begin()->first > now) return std::nullopt;
  const std::uint64_t number = times.begin()->second;
  times.erase(times.begin());
  return number;
}

Deadline RequestTimers::next() const {
  Deadline first = deadlines_.empty() ? Deadline::never() : deadlines_.begin()->first;
  for (const Times* times : {&questions_, &reports_}) {
    if (!times->empty()) first = std::min(first, Deadline::at(times->begin()->first));
  }
  return first;
}

}  // namespace lockstep::internal
