#include "lockstep/comm/messages/progress_engine.h"

#include <algorithm>

#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/health/peer_failure.h"

namespace lockstep::internal {
namespace {

// A program may close descriptors that it does not know; a wait for one of those never ends by itself.
constexpr Duration kLongestWait = std::chrono::seconds(1);

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
    : mesh_(mesh),
      heartbeat_(heartbeat),
      self_(mesh.rank(), matcher_, *this),
      peers_(static_cast<std::size_t>(mesh.size())) {
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (rank != mesh.rank()) peer(rank).link = std::make_unique<MessageLink>(mesh, rank, matcher_, *this);
  }
}

void ProgressEngine::post(const OperationPtr& operation) {
  operation->number = ++posted_;
  live_[operation->number] = operation;
  count_awaited(*operation, 1);
  timers_.add(*operation);
  if (over_) return fail(operation, *over_);
  if (operation->envelope.direction == Direction::receive) return match_receive(operation);
  if (operation->envelope.peer == mesh_.rank()) return self_.post_send(operation);
  Peer& to = peer(operation->envelope.peer);
  if (to.failure) return fail(operation, *to.failure);
  to.link->post_send(operation);
}

void ProgressEngine::ask(int rank) {
  Peer& other = peer(rank);
  if (!over_ && other.link && other.state == LinkState::open) other.link->ask();
}

void ProgressEngine::match_receive(const OperationPtr& receive) {
  const int from = receive->envelope.peer;
  if (const auto arrived = matcher_.take_arrived(receive->envelope)) {
    if (arrived->peer == mesh_.rank()) return self_.accept(receive, *arrived);
    return peer(arrived->peer).link->accept(receive, *arrived);
  }
  const Error* failure = nullptr;
  if (from == kAnySource) {
    failure = failure_for_any();
  } else if (peer(from).failure) {
    failure = &*peer(from).failure;
  }
  if (failure != nullptr) return fail(receive, *failure);
  matcher_.add(receive);
}

void ProgressEngine::finish(const OperationPtr& operation, std::exception_ptr error) {
  if (!operation->state) return;  // a message whose send was finished long ago
  live_.erase(operation->number);
  count_awaited(*operation, -1);
  timers_.remove(*operation);
  const bool sends = operation->envelope.direction == Direction::send;
  const auto state = std::move(operation->state);
  state->complete(sends ? mesh_.rank() : operation->source, std::move(error));
}

void ProgressEngine::fail(const OperationPtr& operation, const Error& reason) {
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

bool ProgressEngine::progress() {
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
    if (other.state == LinkState::open) {
      moved = link.receive();
      if (link.said_goodbye()) {
        end_link(rank, LinkState::left,
                 peer_lost({.peer = rank, .name = mesh_.peer_name(rank), .how = Departure::left}, mesh_.rank()));
      } else if (!link.reason_of_peer().empty()) {
        end_link(rank, LinkState::lost,
                 Error(ErrorKind::peer_lost,
                       fmt::format("{} closed its message link to rank {}: {}", mesh_.peer_name(rank), mesh_.rank(),
                                   link.reason_of_peer()),
                       {.peer = rank}));
      }
    }
    if (other.state == LinkState::open || other.state == LinkState::failing) {
      moved |= link.send();
      if (other.state == LinkState::failing && !link.is_blocked()) other.state = LinkState::lost;
    }
  } catch (const Error& error) {
    handle(rank, error);
    return true;
  }
  return moved;
}

void ProgressEngine::handle(int rank, const Error& error) {
  const bool is_of_peer = error.detail().peer == rank && rank >= 0 && peer(rank).state == LinkState::open;
  if (is_of_peer && error.kind() == ErrorKind::peer_lost) {
    // What it sent before is still there to be received, and tells whether it has left on purpose.
    Peer& other = peer(rank);
    try {
      while (other.link->receive()) continue;
    } catch (const Error&) {  // the same again
    }
    // One that left before it was connected has not said goodbye to messages.
    const bool left = other.link->said_goodbye() || (mesh_.connects_when_needed() && may_have_left(error));
    return end_link(rank, left ? LinkState::left : LinkState::lost, error);
  }
  if (is_of_peer && error.kind() == ErrorKind::corrupt_data) return end_link(rank, LinkState::failing, error);
  if (rank >= 0 && peer(rank).state == LinkState::failing && error.kind() == ErrorKind::peer_lost) {
    peer(rank).state = LinkState::lost;
    return;
  }
  fail_all(error);
}

void ProgressEngine::end_link(int rank, LinkState state, const Error& reason) {
  Peer& other = peer(rank);
  if (other.state != LinkState::open) return;
  other.state = state;
  other.failure = reason;
  heartbeat_.depart(rank, state == LinkState::left ? Departure::left : Departure::died);
  other.link->close(FrameKind::fail, reason.what());
  matcher_.forget_at_sender(rank);
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
    fail(each, reason);
  }
  for (const OperationPtr& each : from_any) {
    matcher_.remove(*each);
    fail(each, *for_any);
  }
}

const Error* ProgressEngine::failure_for_any() const {
  const Error* left = nullptr;
  bool has_open = false;
  for (const Peer& each : peers_) {
    if (!each.link) continue;
    if (each.state == LinkState::failing || each.state == LinkState::lost) return &*each.failure;
    if (each.state == LinkState::open) has_open = true;
    if (each.state == LinkState::left) left = &*each.failure;
  }
  return has_open ? nullptr : left;
}

void ProgressEngine::expire(TimePoint now) {
  while (const auto number = timers_.expired(now)) {
    const OperationPtr operation = live_.at(*number);
    time_out(operation, now);
  }
}

void ProgressEngine::inquire(TimePoint now) {
  while (const auto number = timers_.take_question(now)) {
    const auto operation = live_.find(*number);
    if (operation == live_.end()) continue;
    const int rank = partner(*operation->second);
    if (rank != kAnySource && rank != mesh_.rank() && heartbeat_.ask(rank, now)) ask(rank);
  }
}

void ProgressEngine::report(TimePoint now) {
  while (const auto number = timers_.take_report(now)) {
    const auto live = live_.find(*number);
    if (live == live_.end()) continue;
    Operation& operation = *live->second;
    log_warning(fmt::format("{} has waited {:.0f} s: {}{}", describe(operation.envelope),
                            seconds(now - operation.start), progress_of(operation), state_of(partner(operation))));
    operation.reports.is_due(now - operation.start);
    timers_.add_report(operation);
  }
}

void ProgressEngine::time_out(const OperationPtr& operation, TimePoint now) {
  const Envelope envelope = operation->envelope;
  const double elapsed = seconds(now - operation->start);
  const int with = partner(*operation);
  const std::string text = fmt::format("{} timed out after {:.3f} s: {}{}", describe(envelope), elapsed,
                                       progress_of(*operation), state_of(with));
  const bool is_receive = envelope.direction == Direction::receive;
  const bool is_clean = cancel(*operation);
  const ErrorDetail detail{.rank = mesh_.rank(),
                           .peer = with,
                           .operation = is_receive ? "receive" : "send",
                           .sequence = 0,
                           .elapsed_seconds = elapsed};
  auto error = std::make_exception_ptr(Error(ErrorKind::timeout, text, detail));
  finish(operation, std::move(error));
  if (is_clean) return;
  // The peer counts on the rest of the message, so no other can follow.
  end_link(with, LinkState::failing,
           Error(ErrorKind::peer_lost,
                 fmt::format("the link between ranks {} and {} has failed: {}", mesh_.rank(), with, text),
                 {.rank = mesh_.rank(), .peer = with}));
}

std::string ProgressEngine::progress_of(const Operation& operation) const {
  const Envelope& envelope = operation.envelope;
  const bool is_receive = envelope.direction == Direction::receive;
  if (is_receive && operation.source < 0) return "no message with that tag has arrived";
  if (is_receive) {
    return fmt::format("{} of {} bytes have arrived from rank {}", operation.moved_bytes, envelope.bytes,
                       operation.source);
  }
  const std::string sent = fmt::format("{} of {} bytes were sent", operation.moved_bytes, envelope.bytes);
  const bool is_unmatched = operation.moved_bytes == 0 && (operation.is_rts_sent || envelope.peer == mesh_.rank());
  return is_unmatched ? sent + "; the receiver has not posted a receive for them" : sent;
}

std::string ProgressEngine::state_of(int rank) const {
  if (rank == kAnySource || rank == mesh_.rank()) return "";
  return "; " + describe_missing(mesh_.peer_name(rank), "", health_of(mesh_, heartbeat_, rank));
}

bool ProgressEngine::cancel(const Operation& operation) {
  const bool is_receive = operation.envelope.direction == Direction::receive;
  if (is_receive) return matcher_.remove(operation);
  if (operation.envelope.peer == mesh_.rank()) return matcher_.remove_local(operation);
  return peer(operation.envelope.peer).link->cancel(operation);
}

bool ProgressEngine::has_peers() const {
  return !over_ && std::ranges::any_of(peers_, [](const Peer& each) {
    return each.link && (each.state == LinkState::open || each.state == LinkState::failing);
  });
}

void ProgressEngine::wait() {
  std::vector<Mesh::Interest> interests;
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    const Peer& other = peer(rank);
    if (!other.link) continue;
    const bool is_open = other.state == LinkState::open;
    if (is_open || other.state == LinkState::failing) {
      const bool is_awaited = awaited_from_any_ + other.awaited != 0 || other.link->is_blocked();
      interests.push_back({rank, is_open, other.link->is_blocked(), is_awaited});
    }
  }
  try {
    mesh_.wait(interests, std::min(timers_.next(), Deadline::after(kLongestWait)));
  } catch (const Error& error) {
    const int lost = error.detail().peer;
    if (error.kind() == ErrorKind::timeout && lost < 0) return;
    // A Mesh reports a death once; again and again it throws why the group was ended.
    if (error.kind() == ErrorKind::peer_lost && lost >= 0 && lost != mesh_.rank() && !peer(lost).was_reported) {
      peer(lost).was_reported = true;
      if (peer(lost).state == LinkState::open) return handle(lost, error);
      if (peer(lost).state == LinkState::failing) peer(lost).state = LinkState::lost;
      return;
    }
    fail_all(error);
  }
}

// How many receives wait for the rank, or for any.
void ProgressEngine::count_awaited(const Operation& operation, int change) {
  const Envelope& envelope = operation.envelope;
  if (envelope.direction != Direction::receive || envelope.peer == mesh_.rank()) return;
  (envelope.peer == kAnySource ? awaited_from_any_ : peer(envelope.peer).awaited) += change;
}

void ProgressEngine::fail_all(const Error& reason) {
  if (!over_) over_ = reason;
  const auto live = live_;
  for (const auto& [number, operation] : live) fail(operation, *over_);
}

void ProgressEngine::close(const Error& reason) {
  const bool was_over = over_.has_value();
  fail_all(reason);
  if (was_over) return;
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    Peer& other = peer(rank);
    if (!other.link || other.state != LinkState::open || !mesh_.is_connected(rank)) continue;
    try {
      other.link->close(FrameKind::goodbye, "");
      while (other.link->send()) continue;
    } catch (const Error&) {  // it is gone, too
    }
  }
}

}  // namespace lockstep::internal
