// The groups with a peer, and what ends them: control messages, death and damage.
#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/transport/tcp_mesh.h"
#include "lockstep/comm/transport/tcp_peer.h"

namespace lockstep::internal {
namespace {

// Of groups that are not open here yet, or not closed by the peer.
constexpr std::size_t kMostGroups = std::size_t{1} << 16;
constexpr std::size_t kMostUntold = 4096;

}  // namespace

GroupStream* TcpPeer::find(GroupId id) {
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : &found->second;
}

GroupStream& TcpPeer::stream_of(GroupId id, const char* what) {
  if (GroupStream* const known = find(id)) return *known;
  const Origin origin{what, number_};
  if (open_groups_.contains(id)) throw_corrupt(origin, "its sender is not a member of the group");
  if (streams_.size() >= kMostGroups)
    throw_corrupt(origin, fmt::format("its sender uses more than {} groups", kMostGroups));
  return streams_.try_emplace(id, id, number_).first->second;
}

GroupStream* TcpPeer::reserve(GroupId id) {
  GroupStream& stream = streams_.try_emplace(id, id, number_).first->second;
  return stream.phase == GroupStream::Phase::early ? &stream : nullptr;
}

void TcpPeer::attach(GroupStream& stream, const std::shared_ptr<GroupLinks>& group, const std::string& name) {
  stream.phase = GroupStream::Phase::open;
  stream.group = group;
  stream.name = name;
  frame_into(stream.credit_message, encode(ControlKind::credit, stream.id, stream.credit_step()), kMaxControlBytes);
  stream.window_message.reserve(stream.credit_message.size());
  sleepers_.reserve(streams_.size());  // a wait takes no memory
  if (!damaged_.empty()) {
    end(group, Error(ErrorKind::corrupt_data, damaged_, {.rank = group->rank, .peer = group->rank_of(number_)}));
  } else if (control_.is_dead() && !stream.is_left) {
    stream.is_dead = true;
    stream.is_reported = !control_.is_open();
    if (!stream.is_reported) ++group->unreported;
  }
  for (const Bytes& each : std::exchange(stream.early_announcements, {})) {
    guarded_control([&] { group->note_announcement(each, number_); });
  }
  if (const auto early = std::exchange(stream.early_abort, {})) {
    guarded_control([&] { take_message(*early); });
  }
  if (group->is_aborted) tell_abort(*group);
}

void TcpPeer::detach(GroupStream& stream) {
  if (!control_.is_open()) {
    try {
      untold_.push_back({stream.id, stream.group->aborted_message()});
      if (untold_.size() > kMostUntold) untold_.pop_front();
    } catch (const std::exception&) {  // no memory: the peer sees how this process ends
    }
    streams_.erase(stream.id);
    return;
  }
  if (stream.group->is_aborted) tell_abort(*stream.group);
  try {
    const std::uint64_t rest = stream.begun - stream.sent;
    control_.send(frame(encode(ControlKind::goodbye, stream.id, stream.sent, rest), kMaxControlBytes));
  } catch (const std::exception&) {  // no memory: the peer sees how this process ends
  }
  stream.phase = GroupStream::Phase::closed;
  stream.group.reset();
  stream.arrived.clear();
  forget_if_over(stream);
}

// What groups would have said before there was a connection.
void TcpPeer::tell_missed() noexcept {
  for (auto& [id, stream] : streams_) {
    if (stream.group == nullptr) continue;
    try {
      for (const Bytes& each : stream.group->announced()) control_.send(each);
    } catch (const std::exception&) {  // no memory: to the peer nobody has announced anything
    }
    if (stream.group->is_aborted) tell_abort(*stream.group);
    stream.group->notify();  // bells may have been lost
  }
  try {
    for (const Untold& each : std::exchange(untold_, {})) {
      streams_.try_emplace(each.id, each.id, number_).first->second.phase = GroupStream::Phase::closed;
      if (!each.abort_message.empty()) control_.send(each.abort_message);
      control_.send(frame(encode(ControlKind::goodbye, each.id), kMaxControlBytes));
    }
  } catch (const std::exception&) {  // no memory: the peer sees how this process ends
  }
}

void TcpPeer::fail(const std::string& why) noexcept {
  if (control_.is_dead()) return;
  control_.fail(why);
  for (auto& [id, stream] : streams_) {
    if (stream.group == nullptr || stream.has_gone()) continue;
    stream.is_dead = stream.is_reported = true;
    stream.group->notify();
  }
}

void TcpPeer::refuse(GroupId id) {
  if (streams_.erase(id) == 0) return;
  end_damaged(Error(ErrorKind::corrupt_data,
                    fmt::format("its block names group {:016x}, of which that rank is not a member", id)));
}

void TcpPeer::forget_if_over(GroupStream& stream) {
  if (stream.phase == GroupStream::Phase::closed && (control_.is_dead() || stream.is_over())) streams_.erase(stream.id);
}

template <class Take>
void TcpPeer::guarded_control(Take&& take) noexcept {
  try {
    take();
  } catch (const Error& error) {
    end_all(error.kind(), [&](const std::string& name, const std::string&) {
      return fmt::format("{} sent a malformed control message: {}", name, error.what());
    });
  } catch (const std::exception& error) {
    end_all(ErrorKind::internal, [&](const std::string& name, const std::string&) {
      return fmt::format("a control message from {} could not be processed: {}", name, error.what());
    });
  }
}

void TcpPeer::read_control() noexcept {
  if (control_.is_dead()) return;
  guarded_control([&] { control_.read([&](ByteView message) { take_message(message); }); });
  if (control_.is_dead()) take_death();
}

void TcpPeer::take_message(ByteView bytes) {
  const ControlMessage message = decode_control(bytes, number_);
  if (message.kind == ControlKind::connected) return;
  const Origin origin{"control message", number_};
  GroupStream& stream = stream_of(message.group, "control message");
  switch (message.kind) {
    case ControlKind::abort: return take_abort(stream, message, bytes);
    case ControlKind::announcement: return take_announcement(stream, message.body);
    case ControlKind::goodbye:
      if (message.rest > kMostBlockBytes) throw_corrupt(origin, "it leaves within a block that is too large");
      stream.ends_at = message.bytes;
      stream.over_at = message.bytes + message.rest;
      stream.is_left = true;
      if (stream.group != nullptr) stream.group->notify();
      return forget_if_over(stream);
    case ControlKind::credit:
    case ControlKind::wider:
      if (message.kind == ControlKind::wider) {
        stream.peer_window += checked_size(message.bytes, kLargestWindow - stream.peer_window, "window", origin);
      }
      if (message.bytes > stream.peer_window - stream.credit) {
        throw_corrupt(origin, "it grants credit for more than was sent");
      }
      stream.credit += message.bytes;
      stream.has_wished = false;
      if (stream.awaits_room) stream.group->notify();
      return;
    case ControlKind::wish: return widen(stream, message.bytes);
    default:
      if (stream.group != nullptr) stream.group->notify();
  }
}

void TcpPeer::take_abort(GroupStream& stream, const ControlMessage& message, ByteView bytes) {
  if (stream.phase == GroupStream::Phase::early && !stream.early_abort) stream.early_abort.emplace(bytes);
  if (stream.phase != GroupStream::Phase::open) return;
  const std::shared_ptr<GroupLinks>& group = stream.group;
  const int size = static_cast<int>(group->peers.size());
  // Sent to all again, unchanged: a rank that leaves because of it must not be seen before it.
  const Error error = decode_abort(message, group->rank_of(number_), group->rank, size);
  if (group->end(error, frame(Bytes(bytes), kMaxControlBytes))) ended_.push_back(group);
}

void TcpPeer::take_announcement(GroupStream& stream, ByteView bytes) {
  if (stream.group != nullptr) return stream.group->note_announcement(bytes, number_);
  const bool is_early = stream.phase == GroupStream::Phase::early;
  if (is_early && stream.early_announcements.size() < kMostGroups) stream.early_announcements.emplace_back(bytes);
}

void TcpPeer::tell_abort(const GroupLinks& group) noexcept {
  GroupStream* const stream = find(group.id);
  if (stream == nullptr || stream->group.get() != &group || stream->has_told_abort) return;
  stream->arrived.clear();
  if (!control_.is_open()) return;
  stream->has_told_abort = true;
  control_.send(group.abort_message);
}

void TcpPeer::take_death() noexcept {
  std::erase_if(streams_, [](const auto& each) { return each.second.phase == GroupStream::Phase::closed; });
  for (auto& [id, stream] : streams_) {
    if (stream.group == nullptr || stream.has_gone()) continue;
    stream.is_dead = true;
    ++stream.group->unreported;
    stream.group->notify();
  }
}

void TcpPeer::end(const std::shared_ptr<GroupLinks>& group, const Error& error) {
  if (group->end(error, frame(encode_abort(group->id, error), kMaxControlBytes))) ended_.push_back(group);
}

void TcpPeer::end_all(ErrorKind kind, const Text& text) noexcept {
  for (auto& [id, stream] : streams_) {
    if (stream.group == nullptr) continue;
    try {
      const ErrorDetail detail{.rank = stream.group->rank, .peer = stream.group->rank_of(number_)};
      end(stream.group, Error(kind, text(stream.name, stream.group->name), detail));
    } catch (const std::exception&) {  // no memory for the text
      stream.group->is_aborted = true;
      stream.group->notify();
    }
  }
}

void TcpPeer::end_damaged(const Error& damage) noexcept {
  const Text text = [&](const std::string& name, const std::string& self) {
    return fmt::format(
        "data from {} to {} was damaged on its way: {}; look for a bad network card, cable, switch or "
        "memory between them",
        name, self, damage.what());
  };
  try {
    damaged_ = text(name_, self_);
  } catch (const std::exception&) {
    damaged_ = "damaged";
  }
  end_all(damage.kind(), text);
}

}  // namespace lockstep::internal
