#include "lockstep/comm/collective/engine_base.h"

#include <exception>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/base/tsc_clock.h"

namespace lockstep::internal {

std::uint64_t EngineBase::post(const Collective& collective, Deadline deadline, std::shared_ptr<const void> keeps) {
  fork_guard_.check("a group");
  check(collective);
  refuse_if_failed(collective);
  if (next_ - oldest_ == kInFlight) wait(oldest_, deadline);
  const std::uint64_t number = next_;
  Operation& op = operation(number);
  op.keeps = std::move(keeps);
  op.signature = signature_of(collective, number, generation_);
  op.phase = Phase::posted;
  op.is_run = false;
  // A device's calls, but not its first one, in which ranks meet.
  op.ends_later = collective.as != nullptr && (static_cast<std::uint8_t>(collective.as->mover) & 1) != 0;
  op.deadline = deadline;
  // From begin() on other ranks count on it: room is made before.
  op.input.reserve(collective.input.size());
  op.output.reserve(collective.output.size());
  op.counts.reserve(collective.counts.size());
  const TimePoint begun = FlightLog::now();
  begin(op, collective);
  ++next_;
  op.collective = collective;
  op.collective.as = nullptr;
  op.input.assign(collective.input.begin(), collective.input.end());
  op.output.assign(collective.output.begin(), collective.output.end());
  op.counts.assign(collective.counts.begin(), collective.counts.end());
  op.collective.input = op.input;
  op.collective.output = op.output;
  op.collective.counts = op.counts;
  op.ticket = flight_log_.start(record_of(op.signature), collective.ticket, begun);
  return number;
}

// A collective that the group's end forestalls is recorded too: a launcher looks there for who followed whom.
void EngineBase::refuse_if_failed(const Collective& collective) const {
  try {
    check_failure();
  } catch (const Error& error) {
    FlightTicket ticket = flight_log_.start(record_of(signature_of(collective, next_, generation_)), collective.ticket);
    flight_log_.fail(ticket, error);
    throw;
  }
}

template <class Step>
void EngineBase::guarded(Step&& step) {
  try {
    step();
  } catch (const Error& error) {
    end(error);
  } catch (const std::exception& error) {  // no memory: the others wait for this rank's share all the same
    end(Error(ErrorKind::internal, fmt::format("rank {}: {}", rank_, error.what()), {.rank = rank_, .peer = rank_}));
  }
}

bool EngineBase::poll() {
  guarded([this] { advance_all(); });
  return oldest_ == next_;
}

void EngineBase::advance_all() {
  // What all ranks have posted can be finished, whatever became of them since.
  for (std::uint64_t number = oldest_; number != next_; ++number) {
    Operation& op = operation(number);
    advance(op);
    if (op.phase == Phase::posted) break;  // later ones are reduced later, on all ranks
  }
  while (oldest_ != next_ && operation(oldest_).phase == Phase::finished) ++oldest_;
}

void EngineBase::wait(std::uint64_t number, Deadline deadline) {
  for (;;) {
    poll();
    if (oldest_ > number) break;
    if (failure_) throw Error(*failure_);
    guarded([&] { await(operation(oldest_), deadline); });
  }
}

void EngineBase::run(const Collective& collective, Deadline deadline) {
  const std::uint64_t number = post(collective, deadline);
  operation(number).is_run = true;
  wait(number, deadline);
  failure_note_->forget();
}

void EngineBase::begin_wait(const Operation& operation) {
  if (meter_.is_waiting()) return;
  const bool is_since_post = operation.is_run && operation.ticket.since != TimePoint();
  meter_.waits(is_since_post ? operation.ticket.since : tsc_clock().now());
}

TimePoint EngineBase::finish(Operation& operation) {
  operation.phase = Phase::finished;
  operation.keeps.reset();
  const TimePoint now = operation.ends_later ? FlightLog::now() : flight_log_.finish(operation.ticket);
  meter_.rests(now);
  return now;
}

void EngineBase::end(const Error& error) {
  has_failed_ = true;
  failure_ = fail(operation(oldest_), error);
  // Nobody goes on without that rank. Other errors a program may survive.
  if (failure_->kind() == ErrorKind::peer_lost) {
    failure_note_->note_in_whole("a subgroup, which numbers its ranks separately", failure_->what());
  }
  meter_.rests(tsc_clock().now());
  for (std::uint64_t number = oldest_; number != next_; ++number) {
    flight_log_.fail(operation(number).ticket, *failure_);
  }
  throw Error(*failure_);
}

void EngineBase::end_with(const Error& error) noexcept {
  if (!has_failed_) tell_abort(error);  // else the others know, and why
}

void EngineBase::check_peers() {
  fork_guard_.check("a group");
  check_failure();
  look_at_peers();
}

void EngineBase::abort(std::string_view reason) noexcept {
  try {
    end_with(Error(ErrorKind::aborted, fmt::format("rank {} ended the group: {}", rank_, reason),
                   {.rank = rank_, .peer = rank_}));
  } catch (const std::exception&) {  // no memory for the text: the group still ends, by this process's death
  }
}

}  // namespace lockstep::internal
