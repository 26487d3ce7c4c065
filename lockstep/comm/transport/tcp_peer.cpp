// The streams of data. The rest is in tcp_peer_groups.cpp.
#include "lockstep/comm/transport/tcp_peer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/transport/link_speed.h"
#include "lockstep/comm/transport/receive_buffer.h"
#include "lockstep/comm/transport/tcp_mesh.h"

namespace lockstep::internal {
namespace {

template <class Call>
TcpPeer::Step move(std::uint64_t& position, bool& ready, Call&& call) {
  for (;;) {
    const ssize_t count = call();
    if (count >= 0) {
      position += static_cast<std::uint64_t>(count);
      return {.bytes = static_cast<std::size_t>(count)};
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      ready = false;
      return {.is_blocked = true};
    }
    if (errno != EINTR) return {.failure = std::strerror(errno)};
  }
}

}  // namespace

TcpPeer::TcpPeer(int number, std::string name, std::string self, const TcpMeshSettings& settings,
                 OpenGroups& open_groups)
    : number_(number),
      name_(std::move(name)),
      self_(std::move(self)),
      open_groups_(open_groups),
      control_(settings.host_timeout),
      events_(1 + static_cast<std::size_t>(settings.connections)) {
  for (int i = 0; i < settings.connections; ++i) {
    connections_.push_back({{}, CheckedSender(settings.checksums), CheckedReceiver(settings.checksums)});
  }
}

void TcpPeer::adopt(std::size_t connection, UniqueFd fd) {
  if (connection == 0) {
    control_.open(std::move(fd));
    has_control_ = true;
    return tell_missed();
  }
  enlarge_receive_buffer(fd.get(), kFirstWindow);
  connections_[connection - 1].fd = std::move(fd);
  has_data_ = std::ranges::all_of(connections_, [](const DataConnection& each) { return static_cast<bool>(each.fd); });
  for (const GroupStream* each : sleepers_) each->group->notify();
}

std::size_t TcpPeer::limit(std::uint64_t position, std::size_t bytes) const {
  return connections_.size() == 1 ? bytes : std::min<std::size_t>(bytes, kStripeBytes - position % kStripeBytes);
}

bool TcpPeer::is_within_block_of(const GroupStream& stream) const {
  if (!has_data()) return false;
  const CheckedSender& sender = connections_[turn(sent_)].sender;
  return sender.is_within_block() && sender.group() == stream.id;
}

TcpPeer::Step TcpPeer::send(GroupStream& stream, ByteSpan data) {
  if (stream.flushed != 0) {
    const std::size_t bytes = std::min(stream.flushed, data.size());
    stream.flushed -= bytes;
    return {.bytes = bytes};
  }
  if (!has_data()) return {.is_blocked = true};
  while (is_writable() && !data.empty()) {
    DataConnection& connection = connections_[turn(sent_)];
    if (is_within_block_of(stream) || !connection.sender.is_within_block()) return send_own(connection, stream, data);
    const Step step = flush(connection);
    if (step.is_blocked || !step.failure.empty()) return step;
  }
  return {};
}

TcpPeer::Step TcpPeer::send_own(DataConnection& connection, GroupStream& stream, ByteSpan data) {
  CheckedSender& sender = connection.sender;
  const bool was_within = sender.is_within_block();
  if (!was_within && stream.credit == 0) {
    wish_for_room(stream);
    return {.is_blocked = true};
  }
  std::size_t most = limit(sent_, data.size());
  if (!was_within) most = std::min(most, stream.credit);
  Step step =
      move(sent_, connection.writable, [&] { return sender.send(connection.fd.get(), stream.id, data.first(most)); });
  const bool is_within = sender.is_within_block();
  if (!was_within && (is_within || step.bytes != 0)) {
    stream.credit -= sender.block_bytes();
    stream.begun += sender.block_bytes();
  }
  if (!is_within && (was_within || step.bytes != 0)) stream.sent += sender.block_bytes();
  return step;
}

// A block of another group, which may have been closed; no bytes.
TcpPeer::Step TcpPeer::flush(DataConnection& connection) {
  CheckedSender& sender = connection.sender;
  Step step = move(sent_, connection.writable, [&] { return sender.flush(connection.fd.get()); });
  const std::size_t bytes = std::exchange(step.bytes, 0);
  GroupStream* const stream = find(sender.group());
  if (stream == nullptr || stream->phase != GroupStream::Phase::open) return step;
  stream->flushed += bytes;
  if (bytes != 0 && stream->awaits_room) stream->group->notify();
  if (!sender.is_within_block()) stream->sent += sender.block_bytes();
  return step;
}

// What was read off a connection and could not be kept is lost, for whatever reason.
template <class Receive>
void TcpPeer::guarded(Receive&& receive) noexcept {
  try {
    receive();
  } catch (const Error& error) {
    end_damaged(error);
  } catch (const std::exception& error) {
    end_damaged(Error(ErrorKind::internal, error.what()));
  }
}

TcpPeer::Step TcpPeer::receive(GroupStream& stream, MutableByteSpan space) {
  Step step;
  // Just now, by another thread: what had arrived is gone, so the next bytes are not the next of the stream.
  if (stream.group->is_aborted) return step;
  if (!stream.arrived.empty()) {
    step.bytes = stream.arrived.take(space);
  } else if (stream.has_ended()) {
    step.failure = "it has left";
  } else if (damaged_.empty()) {
    guarded([&] { step = receive_for(&stream, space); });
    stream.received += step.bytes;
  }
  stream.taken += step.bytes;
  give_credit(stream);
  return step;
}

TcpPeer::Step TcpPeer::receive_for(GroupStream* stream, MutableByteSpan space) {
  const GroupId id = stream == nullptr ? 0 : stream->id;
  if (!has_data()) return {.is_blocked = true};
  while (is_readable() && (stream == nullptr || !space.empty())) {
    DataConnection& connection = connections_[turn(received_)];
    CheckedReceiver::Found found;
    Step step = move(received_, connection.readable, [&] {
      found = connection.receiver.receive(connection.fd.get(), id, space.first(limit(received_, space.size())));
      return found.count;
    });
    if (!found.elsewhere.empty()) {
      keep(found.group, found.elsewhere);
      continue;
    }
    const bool has_ended = step.bytes == 0 && !step.is_blocked && step.failure.empty();
    if (has_ended) step.failure = "its process ended or closed the connection";
    return step;
  }
  return {};
}

void TcpPeer::keep(GroupId id, ByteSpan data) {
  GroupStream& stream = stream_of(id, "block");
  stream.received += data.size();
  if (stream.phase == GroupStream::Phase::closed) return forget_if_over(stream);
  if (stream.group != nullptr && stream.group->is_aborted) return;
  if (stream.received - stream.credited > stream.window) throw_corrupt({"block", number_}, "it exceeds its credit");
  stream.arrived.add(data);
  if (stream.awaits_data) stream.group->notify();
}

void TcpPeer::give_credit(GroupStream& stream) {
  const std::size_t step = stream.credit_step();
  for (; stream.taken - stream.credited >= step; stream.credited += step) send_control(stream.credit_message);
}

// The window stops the stream. If that, and not the link, limits it, the peer is asked for a larger one.
void TcpPeer::wish_for_room(GroupStream& stream) noexcept {
  if (std::exchange(stream.has_wished, true)) return;
  LinkSpeed speed;
  for (const DataConnection& each : connections_) {
    const LinkSpeed one = speed_of(each.fd.get());
    speed.bytes_per_second += one.bytes_per_second;
    speed.round_trip = std::max(speed.round_trip, one.round_trip);
  }
  const std::size_t wanted = wanted_window(stream.peer_window, speed);
  if (wanted <= stream.peer_window) return;
  try {
    frame_into(stream.window_message, encode(ControlKind::wish, stream.id, wanted), kMaxControlBytes);
    send_control(stream.window_message);
  } catch (const std::exception&) {  // no memory: the window stays as it is
  }
}

void TcpPeer::widen(GroupStream& stream, std::size_t wanted) {
  if (stream.phase != GroupStream::Phase::open) return;
  const std::size_t window = granted_window(stream.window, wanted, stream.arrived.size());
  if (window == stream.window) return;
  const std::size_t more = window - stream.window;
  frame_into(stream.window_message, encode(ControlKind::wider, stream.id, more), kMaxControlBytes);
  send_control(stream.window_message);
  stream.window = window;
  for (const DataConnection& each : connections_) enlarge_receive_buffer(each.fd.get(), window);
  frame_into(stream.credit_message, encode(ControlKind::credit, stream.id, window / 4), kMaxControlBytes);
}

bool TcpPeer::is_readable() const {
  if (!has_data()) return false;
  const DataConnection& connection = connections_[turn(received_)];
  return connection.readable || connection.receiver.has_data();
}

bool TcpPeer::is_ready(const GroupStream& stream, bool readable, bool writable) const {
  if (!has_data() && stream.has_gone()) return true;
  if (readable && (!stream.arrived.empty() || stream.has_ended() || (damaged_.empty() && is_readable()))) return true;
  if (!writable) return false;
  if (stream.flushed != 0) return true;
  return (stream.credit != 0 || is_within_block_of(stream)) && is_writable();
}

void TcpPeer::enlist(GroupStream& stream, bool readable, bool writable) {
  stream.awaits_data = readable;
  stream.awaits_room = writable;
  sleepers_.push_back(&stream);
}

void TcpPeer::delist(GroupStream& stream) {
  stream.awaits_data = stream.awaits_room = false;
  std::erase(sleepers_, &stream);
}

void TcpPeer::note_events(std::size_t connection, std::uint32_t events) {
  events_[connection].fetch_or(events);
  has_events_ = true;
}

void TcpPeer::take_events(const GroupLinks* me) noexcept {
  if (!has_events_.exchange(false)) return;
  bool has_data_events = false;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    const std::uint32_t events = events_[i + 1].exchange(0);
    connections_[i].note(events);
    has_data_events |= events != 0;
  }
  if (has_data_events) receive_for_sleepers(me);
  const std::uint32_t events = events_[0].exchange(0);
  if ((events & EPOLLOUT) != 0) send_control({});
  if (events != 0) read_control();
}

void TcpPeer::receive_for_sleepers(const GroupLinks* me) noexcept {
  const auto is_other = [me](const GroupStream* each) { return each->group.get() != me; };
  const auto awaits_data = [&](const GroupStream* each) { return is_other(each) && each->awaits_data; };
  if (is_readable() && std::ranges::any_of(sleepers_, awaits_data)) {
    guarded([&] {
      if (damaged_.empty()) receive_for(nullptr, {});
    });
    for (const GroupStream* each : sleepers_) {  // it is over: each finds that itself
      if (each->awaits_data && is_readable()) each->group->notify();
    }
  }
  for (const GroupStream* each : sleepers_) {
    if (is_other(each) && each->awaits_room && is_writable()) each->group->notify();
  }
}

}  // namespace lockstep::internal
