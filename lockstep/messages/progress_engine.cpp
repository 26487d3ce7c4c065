#include "lockstep/messages/progress_engine.h"

#include <algorithm>

#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/health/peer_failure.h"

namespace lockstep {
namespace {

// A peer is asked for a heartbeat this long before a message runs into its deadline, so that the error can tell.
constexpr Duration kNotice = std::chrono::milliseconds(500);

TimePoint when_to_ask(const Operation& operation) {
  const TimePoint end = operation.deadline.when();
  return end - std::min(kNotice, (end - operation.start) / 2);
}

// A program may close descriptors that it does not know; a wait for one of those never ends by itself.
constexpr Duration kLongestWait = std::chrono::seconds(1);

// And this long before the log says that it waits.
constexpr Duration kBeforeReport = std::chrono::milliseconds(300);

TimePoint when_to_report(const Operation& operation) {
  const Duration wait = operation.reports.next();
  return wait >= TimePoint::max() - operation.start ? TimePoint::max() : operation.start + wait;
}

// The rank with which it moves bytes, or kAnySource.
int partner(const Operation& operation) {
  const bool is_receive = operation.envelope.direction == Direction::receive;
  return is_receive && operation.source >= 0 ? operation.source : operation.envelope.peer;
}

}  // namespace

PeerHealth health_of(const Mesh& mesh, const Heartbeat& heartbeat, int rank) {
  PeerHealth health = heartbeat.health(rank);
  if (const std::string_view seen = mesh.peer_state(rank); !seen.empty()) {
    // The kernel knows better than answers do: where ranks share memory, not all of them have a messenger.
    health.silent = Duration::zero();
    health.state = seen;
  }
  return health;
}

ProgressEngine::ProgressEngine(Mesh& mesh, Heartbeat& heartbeat)
    : mesh_(mesh), heartbeat_(heartbeat), peers_(static_cast<std::size_t>(mesh.size())) {
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (rank != mesh.rank()) peer(rank).link = std::make_unique<MessageLink>(mesh, rank, matcher_, *this);
  }
}

void ProgressEngine::post(const OperationPtr& operation) {
  operation->number = ++posted_;
  live_[operation->number] = operation;
  if (!operation->deadline.is_never()) {
    deadlines_.emplace(operation->deadline, operation->number);
    questions_.emplace(when_to_ask(*operation), operation->number);
  }
  await_report(*operation);
  if (over_) return finish_failed(operation, *over_);
  if (operation->envelope.direction == Direction::receive) return match_receive(operation);
  if (operation->envelope.peer == mesh_.rank()) return post_to_self(operation);
  Peer& to = peer(operation->envelope.peer);
  if (to.failure) return finish_failed(operation, *to.failure);
  to.link->post_send(operation);
}

void ProgressEngine::ask(int rank) {
  Peer& other = peer(rank);
  if (!over_ && other.link && other.standing == Standing::open) other.link->ask();
}

void ProgressEngine::match_receive(const OperationPtr& receive) {
  const int from = receive->envelope.peer;
  if (const auto arrived = matcher_.take_arrived(receive->envelope)) {
    if (arrived->peer != mesh_.rank()) return peer(arrived->peer).link->accept(receive, *arrived);
    if (arrived->send) return hand_over(receive, arrived->send);
    self_bytes_ -= eager_cost_bytes(arrived->bytes);
    const auto copy = std::make_shared<Operation>();
    copy->envelope = {Direction::send, mesh_.rank(), arrived->tag, arrived->bytes};
    copy->memory = {MutableByteSpan(const_cast<std::byte*>(arrived->data.data()), arrived->data.size())};
    return hand_over(receive, copy);
  }
  const Error* failure = nullptr;
  if (from == kAnySource) {
    failure = failure_for_any();
  } else if (peer(from).failure) {
    failure = &*peer(from).failure;
  }
  if (failure != nullptr) return finish_failed(receive, *failure);
  matcher_.add(receive);
}

void ProgressEngine::post_to_self(const OperationPtr& send) {
  const Envelope& envelope = send->envelope;
  if (const OperationPtr receive = matcher_.take_receive(mesh_.rank(), envelope.tag)) return hand_over(receive, send);
  Arrived arrived{Arrived::Where::local, mesh_.rank(), envelope.tag, envelope.bytes, 0, {}, send};
  if (envelope.bytes > kEagerBytes || self_bytes_ + eager_cost_bytes(envelope.bytes) > kUnexpectedBytes) {
    return matcher_.add(std::move(arrived));
  }
  self_bytes_ += eager_cost_bytes(envelope.bytes);
  arrived.send = nullptr;
  arrived.data.resize(envelope.bytes);
  send->copy_out(arrived.data);
  matcher_.add(std::move(arrived));
  finish(send, nullptr);
}

void ProgressEngine::hand_over(const OperationPtr& receive, const OperationPtr& send) {
  receive->source = mesh_.rank();
  if (receive->envelope.bytes == send->envelope.bytes) {
    while (send->left_bytes() != 0) {
      const MutableByteSpan run = send->run();
      receive->copy_in(run);
      send->advance(run.size());
    }
    finish(receive, nullptr);
    return finish(send, nullptr);
  }
  const Error reason(ErrorKind::desync, fmt::format("this rank sent {} bytes with that tag to itself and expects {}",
                                                    send->envelope.bytes, receive->envelope.bytes));
  finish_failed(receive, reason);
  finish_failed(send, reason);
}

void ProgressEngine::finish(const OperationPtr& operation, std::exception_ptr error) {
  if (!operation->state) return;  // a message whose send was finished long ago
  live_.erase(operation->number);
  if (!operation->deadline.is_never()) {
    deadlines_.erase({operation->deadline, operation->number});
    questions_.erase({when_to_ask(*operation), operation->number});
  }
  reports_.erase({when_to_report(*operation), operation->number});
  questions_.erase({when_to_report(*operation) - kBeforeReport, operation->number});
  const bool sends = operation->envelope.direction == Direction::send;
  const auto state = std::move(operation->state);
  state->complete(sends ? mesh_.rank() : operation->source, std::move(error));
}

void ProgressEngine::finish_failed(const OperationPtr& operation, const Error& reason) {
  const Envelope& envelope = operation->envelope;
  ErrorDetail detail = reason.detail();
  detail.rank = mesh_.rank();
  if (detail.peer < 0) detail.peer = envelope.peer;
  detail.operation = envelope.direction == Direction::send ? "send" : "receive";
  detail.elapsed_seconds = seconds(steady_clock().now() - operation->start);
  auto error = std::make_exception_ptr(
      Error(reason.kind(), fmt::format("{} failed: {}", describe(envelope), reason.what()), detail));
  finish(operation, std::move(error));
}

bool ProgressEngine::turn() {
  const TimePoint now = steady_clock().now();
  expire(now);
  inquire(now);
  report(now);
  bool moved = false;
  for (int rank = 0; rank < mesh_.size() && !over_; ++rank) {
    if (peer(rank).link) moved |= move(rank);
  }
  return moved;
}

bool ProgressEngine::move(int rank) {
  Peer& other = peer(rank);
  MessageLink& link = *other.link;
  bool moved = false;
  try {
    if (other.standing == Standing::open) {
      moved = link.receive();
      if (link.said_goodbye()) {
        end_link(rank, Standing::left,
                 peer_lost({.peer = rank, .name = mesh_.peer_name(rank), .how = Departure::left}, mesh_.rank()));
      } else if (!link.reason_of_peer().empty()) {
        end_link(rank, Standing::lost,
                 Error(ErrorKind::peer_lost,
                       fmt::format("{} gave up its link: {}", mesh_.peer_name(rank), link.reason_of_peer()),
                       {.peer = rank}));
      }
    }
    if (other.standing == Standing::open || other.standing == Standing::failing) {
      moved |= link.send();
      if (other.standing == Standing::failing && !link.is_blocked()) other.standing = Standing::lost;
    }
  } catch (const Error& error) {
    handle(rank, error);
    return true;
  }
  return moved;
}

void ProgressEngine::handle(int rank, const Error& error) {
  const bool is_of_peer = error.detail().peer == rank && rank >= 0 && peer(rank).standing == Standing::open;
  if (is_of_peer && error.kind() == ErrorKind::peer_lost) {
    // What it sent before is still there to be received, and tells whether it has left on purpose.
    Peer& other = peer(rank);
    try {
      while (other.link->receive()) continue;
    } catch (const Error&) {  // the same again
    }
    const bool left = other.link->said_goodbye();
    return end_link(rank, left ? Standing::left : Standing::lost, error);
  }
  if (is_of_peer && error.kind() == ErrorKind::corrupt_data) return end_link(rank, Standing::failing, error);
  if (rank >= 0 && peer(rank).standing == Standing::failing && error.kind() == ErrorKind::peer_lost) {
    peer(rank).standing = Standing::lost;
    return;
  }
  fail_all(error);
}

void ProgressEngine::end_link(int rank, Standing standing, const Error& reason) {
  Peer& other = peer(rank);
  if (other.standing != Standing::open) return;
  other.standing = standing;
  other.failure = reason;
  heartbeat_.depart(rank, standing == Standing::left ? Departure::left : Departure::died);
  other.link->close(FrameKind::fail, reason.what());
  matcher_.forget_announced(rank);
  const Error* for_any = failure_for_any();
  std::vector<OperationPtr> ended, from_any;
  for (const auto& [number, operation] : live_) {
    if (operation->envelope.peer == rank || operation->source == rank) {
      ended.push_back(operation);
    } else if (operation->envelope.peer == kAnySource && operation->source < 0 && for_any != nullptr) {
      from_any.push_back(operation);
    }
  }
  for (const OperationPtr& each : ended) {
    matcher_.remove(*each);
    finish_failed(each, reason);
  }
  for (const OperationPtr& each : from_any) {
    matcher_.remove(*each);
    finish_failed(each, *for_any);
  }
}

const Error* ProgressEngine::failure_for_any() const {
  const Error* left = nullptr;
  bool has_open = false;
  for (const Peer& each : peers_) {
    if (!each.link) continue;
    if (each.standing == Standing::failing || each.standing == Standing::lost) return &*each.failure;
    if (each.standing == Standing::open) has_open = true;
    if (each.standing == Standing::left) left = &*each.failure;
  }
  return has_open ? nullptr : left;
}

void ProgressEngine::expire(TimePoint now) {
  while (!deadlines_.empty() && deadlines_.begin()->first.expired(now)) {
    const OperationPtr operation = live_.at(deadlines_.begin()->second);
    time_out(operation, now);
  }
}

void ProgressEngine::inquire(TimePoint now) {
  while (!questions_.empty() && questions_.begin()->first <= now) {
    const auto operation = live_.find(questions_.begin()->second);
    questions_.erase(questions_.begin());
    if (operation == live_.end()) continue;
    const int rank = partner(*operation->second);
    if (rank != kAnySource && rank != mesh_.rank() && heartbeat_.ask(rank, now)) ask(rank);
  }
}

void ProgressEngine::await_report(const Operation& operation) {
  const TimePoint when = when_to_report(operation);
  if (when == TimePoint::max() || operation.deadline < Deadline::at(when)) return;
  reports_.emplace(when, operation.number);
  questions_.emplace(when - kBeforeReport, operation.number);
}

void ProgressEngine::report(TimePoint now) {
  while (!reports_.empty() && reports_.begin()->first <= now) {
    const auto live = live_.find(reports_.begin()->second);
    reports_.erase(reports_.begin());
    if (live == live_.end()) continue;
    Operation& operation = *live->second;
    log_warning(fmt::format("{} has waited {:.0f} s: {}{}", describe(operation.envelope),
                            seconds(now - operation.start), progress(operation), state_of(partner(operation))));
    operation.reports.is_due(now - operation.start);
    await_report(operation);
  }
}

void ProgressEngine::time_out(const OperationPtr& operation, TimePoint now) {
  const Envelope envelope = operation->envelope;
  const double elapsed = seconds(now - operation->start);
  const int with = partner(*operation);
  const std::string text = fmt::format("{} timed out after {:.3f} s: {}{}", describe(envelope), elapsed,
                                       progress(*operation), state_of(with));
  const bool is_receive = envelope.direction == Direction::receive;
  const bool is_clean = withdraw(*operation);
  const ErrorDetail detail{.rank = mesh_.rank(),
                           .peer = with,
                           .operation = is_receive ? "receive" : "send",
                           .sequence = 0,
                           .elapsed_seconds = elapsed};
  auto error = std::make_exception_ptr(Error(ErrorKind::timeout, text, detail));
  finish(operation, std::move(error));
  if (is_clean) return;
  // The peer counts on the rest of the message, so no other can follow.
  end_link(with, Standing::failing,
           Error(ErrorKind::peer_lost,
                 fmt::format("the link between ranks {} and {} was given up: {}", mesh_.rank(), with, text),
                 {.rank = mesh_.rank(), .peer = with}));
}

std::string ProgressEngine::progress(const Operation& operation) const {
  const Envelope& envelope = operation.envelope;
  const bool is_receive = envelope.direction == Direction::receive;
  if (is_receive && operation.source < 0) return "no message with that tag has come";
  if (is_receive) {
    return fmt::format("{} of {} bytes have come from rank {}", operation.moved_bytes, envelope.bytes,
                       operation.source);
  }
  const std::string sent = fmt::format("{} of {} bytes were sent", operation.moved_bytes, envelope.bytes);
  const bool is_unmatched = operation.moved_bytes == 0 && (operation.announced || envelope.peer == mesh_.rank());
  return is_unmatched ? sent + "; the receiver has not asked for them" : sent;
}

std::string ProgressEngine::state_of(int rank) const {
  if (rank == kAnySource || rank == mesh_.rank()) return "";
  return "; " + describe_missing(mesh_.peer_name(rank), "", health_of(mesh_, heartbeat_, rank));
}

bool ProgressEngine::withdraw(const Operation& operation) {
  const bool is_receive = operation.envelope.direction == Direction::receive;
  if (is_receive) return matcher_.remove(operation);
  if (operation.envelope.peer == mesh_.rank()) return matcher_.remove_local(operation);
  return peer(operation.envelope.peer).link->withdraw(operation);
}

Deadline ProgressEngine::next_deadline() const {
  Deadline first = deadlines_.empty() ? Deadline::never() : deadlines_.begin()->first;
  for (const auto* times : {&questions_, &reports_}) {
    if (!times->empty()) first = std::min(first, Deadline::at(times->begin()->first));
  }
  return first;
}

bool ProgressEngine::has_peers() const {
  return !over_ && std::ranges::any_of(peers_, [](const Peer& each) {
    return each.link && (each.standing == Standing::open || each.standing == Standing::failing);
  });
}

void ProgressEngine::wait() {
  std::vector<Mesh::Interest> interests;
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    const Peer& other = peer(rank);
    if (!other.link) continue;
    const bool is_open = other.standing == Standing::open;
    if (is_open || other.standing == Standing::failing) interests.push_back({rank, is_open, other.link->is_blocked()});
  }
  try {
    mesh_.wait(interests, std::min(next_deadline(), Deadline::after(kLongestWait)));
  } catch (const Error& error) {
    const int lost = error.detail().peer;
    if (error.kind() == ErrorKind::timeout && lost < 0) return;
    // A Mesh reports a death once; again and again it throws why the group was ended.
    if (error.kind() == ErrorKind::peer_lost && lost >= 0 && lost != mesh_.rank() && !peer(lost).was_reported) {
      peer(lost).was_reported = true;
      if (peer(lost).standing == Standing::open) return handle(lost, error);
      if (peer(lost).standing == Standing::failing) peer(lost).standing = Standing::lost;
      return;
    }
    fail_all(error);
  }
}

void ProgressEngine::fail_all(const Error& reason) {
  if (!over_) over_ = reason;
  const auto live = live_;
  for (const auto& [number, operation] : live) finish_failed(operation, *over_);
}

void ProgressEngine::close(const Error& reason) {
  const bool was_over = over_.has_value();
  fail_all(reason);
  if (was_over) return;
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    Peer& other = peer(rank);
    if (!other.link || other.standing != Standing::open) continue;
    try {
      other.link->close(FrameKind::goodbye, "");
      while (other.link->send()) continue;
    } catch (const Error&) {  // it is gone, too
    }
  }
}

}  // namespace lockstep
