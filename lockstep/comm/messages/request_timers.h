// The RequestTimers say when something is to be done for an operation that waits: its deadline, a question to its peer
// for a heartbeat ahead of that, and reports in the log. ProgressEngine -> RequestTimers. Pure; one thread at a
// time.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/messages/operation.h"

namespace lockstep::internal {

class RequestTimers {
 public:
  void add(const Operation& operation);
  void remove(const Operation& operation);
  // A report is to be made; again after every one.
  void add_report(const Operation& operation);

  // The number of an operation whose time has come. Its deadline stays until remove(), the others are taken out.
  std::optional<std::uint64_t> expired(TimePoint now) const;
  std::optional<std::uint64_t> take_question(TimePoint now) { return take(questions_, now); }
  std::optional<std::uint64_t> take_report(TimePoint now) { return take(reports_, now); }
  // When the next one comes.
  Deadline next() const;

 private:
  using Times = std::set<std::pair<TimePoint, std::uint64_t>>;
  static std::optional<std::uint64_t> take(Times& times, TimePoint now);

  std::set<std::pair<Deadline, std::uint64_t>> deadlines_;
  Times questions_;
  Times reports_;
};

}  // namespace lockstep::internal
