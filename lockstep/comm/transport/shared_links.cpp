#include "lockstep/comm/transport/shared_links.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/format.h"
#include "lockstep/base/private_fd.h"
#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/transport/control_message.h"
#include "lockstep/comm/transport/doorbell.h"

namespace lockstep::internal {
namespace {

// See window_; for each connection.
constexpr std::size_t kWindowBytes = std::size_t{8} << 20;
// Of groups that are not open here yet.
constexpr std::size_t kMostGroups = std::size_t{1} << 16;

}  // namespace

SharedLinks::SharedLinks(int rank, std::vector<TcpLink> links, const TcpMeshSettings& settings)
    : rank_(rank),
      connections_(settings.connections),
      checksums_(settings.checksums),
      window_(kWindowBytes * static_cast<std::size_t>(settings.connections)),
      credit_step_(window_ / 4),
      epoll_(PrivateFd::open([] { return ::epoll_create1(EPOLL_CLOEXEC); })),
      wake_(PrivateFd::open([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })),
      peers_(links.size()) {
  if (!epoll_ || !wake_) throw system_error("making the descriptors of a mesh failed", errno);
  watch_all(links);
  for (int number = 0; number < static_cast<int>(links.size()); ++number) {
    TcpPeer& peer = this->peer(number);
    TcpLink& link = links[static_cast<std::size_t>(number)];
    peer.name = std::move(link.who);
    peer.host_timeout = settings.host_timeout;
    if (number == rank_) continue;
    peer.control = std::move(link.control);
    peer.streams = TcpStreams(std::move(link.data), settings.checksums);
  }
}

GroupLinks& SharedLinks::open(GroupId id, int rank, const std::vector<int>& connected,
                              const std::vector<std::string>& names) {
  const std::lock_guard lock(mutex_);
  GroupLinks* const known = find(id);
  if (closed_.contains(id) || (known != nullptr && known->is_open)) {
    throw Error(ErrorKind::invalid_argument, fmt::format("group {:016x} already exists", id), {.rank = rank});
  }
  GroupLinks& group = known != nullptr ? *known : groups_.try_emplace(id, id).first->second;
  for (std::size_t each = 0; each < connected.size(); ++each) {
    const bool is_self = std::cmp_equal(each, rank);
    GroupStream* const stream = is_self ? nullptr : &stream_of(group, connected[each]);
    if (stream != nullptr) stream->name = names[each];
    group.by_rank.push_back(stream);
  }
  group.rank = rank;
  group.name = names[static_cast<std::size_t>(rank)];
  group.bell_message = frame(encode(ControlKind::bell, id), kMaxControlBytes);
  group.credit_message = frame(encode(ControlKind::credit, id, credit_step_), kMaxControlBytes);
  group.is_open = true;
  for (auto& [number, stream] : group.streams) {
    const int sender = group.rank_of(number);
    if (sender < 0) {
      end_damaged(number, Error(ErrorKind::corrupt_data, "it sends to a group to which it does not belong"));
    } else if (!peer(number).damaged.empty()) {
      end(group, Error(ErrorKind::corrupt_data, peer(number).damaged, {.rank = rank, .peer = sender}));
    } else if (peer(number).is_dead() && !stream.is_left) {
      stream.is_dead = true;
      ++group.unreported;
    }
  }
  if (const auto early = std::exchange(group.early_abort, {})) {
    guarded_control(early->first, [&] { take_control(early->first, early->second); });
  }
  return group;
}

void SharedLinks::close(GroupLinks& group) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    for (const GroupStream* stream : group.by_rank) {
      if (stream != nullptr) send_control(stream->peer, encode(ControlKind::goodbye, group.id, stream->sent));
    }
    closed_.insert(group.id);
  } catch (const std::exception&) {  // no memory: it stays, as one that nobody reads
    group.is_aborted = true;
    return;
  }
  groups_.erase(group.id);
}

// Receives. What was read off a connection and could not be kept is lost, for whatever reason.
template <class Receive>
void SharedLinks::guarded(int from, Receive&& receive) {
  moving_ = from;
  try {
    receive();
  } catch (const Error& error) {
    end_damaged(from, error);
  } catch (const std::exception& error) {
    end_damaged(from, Error(ErrorKind::internal, error.what()));
  }
}

template <class Take>
void SharedLinks::guarded_control(int from, Take&& take) {
  try {
    take();
  } catch (const Error& error) {
    end_all(from, error.kind(), [&](const std::string& name, const std::string&) {
      return fmt::format("{} sent a malformed control message: {}", name, error.what());
    });
  }
}

SharedLinks::Step SharedLinks::send(GroupLinks& group, GroupStream& stream, ByteSpan data) {
  const std::lock_guard lock(mutex_);
  TcpStreams& streams = peer(stream.peer).streams;
  if (!stream.flushed.empty()) {
    const std::size_t bytes = std::min(stream.flushed.size(), data.size());
    const auto end = stream.flushed.begin() + static_cast<std::ptrdiff_t>(bytes);
    if (!std::equal(stream.flushed.begin(), end, data.begin())) return {.failure = std::strerror(EPROTO)};
    stream.flushed.erase(stream.flushed.begin(), end);
    return {.bytes = bytes};
  }
  moving_ = stream.peer;
  sender_ = {&group, &stream};
  if (stream.is_abandoned) {
    if (const Step step = streams.finish(group.id, *this); streams.is_within_block_of(group.id)) return step;
  }
  if (!streams.is_within_block_of(group.id)) {
    if (stream.credit == 0) return {.is_blocked = true};
    data = data.first(std::min(data.size(), stream.credit));
  }
  return streams.send(group.id, data, *this);
}

void SharedLinks::abandon(GroupLinks& group, GroupStream& stream) {
  const std::lock_guard lock(mutex_);
  stream.flushed.clear();
  stream.is_abandoned = peer(stream.peer).streams.is_within_block_of(group.id);
}

SharedLinks::Step SharedLinks::receive(GroupLinks& group, GroupStream& stream, MutableByteSpan space) {
  const std::lock_guard lock(mutex_);
  Step step;
  if (group.is_aborted) return step;  // just now, by another thread: what had arrived is gone, so the next is not next
  if (!stream.arrived.empty()) {
    step.bytes = stream.arrived.take(space);
  } else if (stream.has_ended()) {
    step.failure = "it has left";
  } else if (TcpPeer& from = peer(stream.peer); from.damaged.empty()) {
    guarded(stream.peer, [&] { step = from.streams.receive(group.id, space, *this); });
    stream.received += step.bytes;
  }
  stream.taken += step.bytes;
  give_credit(group, stream);
  return step;
}

void SharedLinks::receive_all(int from) {
  TcpPeer& peer = this->peer(from);
  if (peer.damaged.empty()) guarded(from, [&] { peer.streams.receive_all(*this); });
}

void SharedLinks::give_credit(const GroupLinks& group, GroupStream& stream) {
  for (; stream.taken - stream.credited >= credit_step_; stream.credited += credit_step_) {
    peer(stream.peer).send_control(group.credit_message);
  }
}

void SharedLinks::send_control(int to, const Bytes& message) noexcept {
  peer(to).send_control(frame(message, kMaxControlBytes));
}

void SharedLinks::ring_bell(const GroupLinks& group, const GroupStream& stream) {
  const std::lock_guard lock(mutex_);
  peer(stream.peer).send_control(group.bell_message);
}

SharedLinks::Sender SharedLinks::sender(GroupId id) {
  if (sender_.group->id == id) return sender_;
  GroupLinks* const group = find(id);
  return group == nullptr ? Sender{} : Sender{group, &stream_of(*group, moving_)};
}

void SharedLinks::begun(GroupId id, std::size_t bytes) { sender(id).stream->credit -= bytes; }

void SharedLinks::flushed(GroupId id, ByteSpan data) {
  const auto [group, stream] = sender(id);
  if (group == nullptr || stream->is_abandoned) return;  // or it was closed
  stream->flushed.insert(stream->flushed.end(), data.begin(), data.end());
  if (group->awaits(moving_, &Mesh::Interest::writable)) notify(*group);
}

void SharedLinks::ended(GroupId id, std::size_t bytes) {
  GroupStream* const stream = sender(id).stream;
  if (stream == nullptr) return;
  stream->sent += bytes;
  stream->is_abandoned = false;
}

void SharedLinks::arrived(GroupId id, ByteSpan data) {
  if (closed_.contains(id)) return;
  GroupLinks* const known = find(id);
  const int from = moving_;
  if (known == nullptr && groups_.size() >= kMostGroups) throw_corrupt({"block", from}, "too many groups");
  GroupLinks& group = known != nullptr ? *known : groups_.try_emplace(id, id).first->second;
  if (group.is_aborted) return;
  GroupStream& stream = stream_of(group, from);
  stream.received += data.size();
  if (stream.received - stream.credited > window_) throw_corrupt({"block", from}, "it exceeds its credit");
  stream.arrived.add(data);
  if (group.awaits(from, &Mesh::Interest::readable)) notify(group);
}

GroupLinks* SharedLinks::find(GroupId id) {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : &found->second;
}

GroupStream& SharedLinks::stream_of(GroupLinks& group, int number) {
  const auto found = group.streams.find(number);
  if (found != group.streams.end()) return found->second;
  if (group.is_open) throw_corrupt({"block", number}, "sent to a group to which it does not belong");
  return group.streams.try_emplace(number, number, window_).first->second;
}

void SharedLinks::read_control(int from) {
  TcpPeer& peer = this->peer(from);
  if (peer.is_dead() || from == rank_) return;
  guarded_control(from, [&] { peer.read_control([&](ByteView message) { take_control(from, message); }); });
  if (!peer.is_dead()) return;
  for (auto& [id, group] : groups_) {
    const auto found = group.streams.find(from);
    if (!group.is_open || found == group.streams.end() || found->second.is_over()) continue;
    found->second.is_dead = true;
    ++group.unreported;
    notify(group);
  }
}

void SharedLinks::take_control(int from, ByteView bytes) {
  const ControlMessage message = decode_control(bytes, from);
  if (message.kind == ControlKind::connected || closed_.contains(message.group)) return;
  GroupLinks* const known = find(message.group);
  const Origin origin{"control message", from};
  if (known == nullptr && groups_.size() >= kMostGroups) throw_corrupt(origin, "too many groups");
  GroupLinks& group = known != nullptr ? *known : groups_.try_emplace(message.group, message.group).first->second;
  GroupStream& stream = stream_of(group, from);
  switch (message.kind) {
    case ControlKind::abort:
      if (group.is_open) {
        const int size = static_cast<int>(group.by_rank.size());
        // Sent to all again, unchanged: a rank that leaves because of it must not be seen before it.
        tell_abort(group, decode_abort(message, group.rank_of(from), group.rank, size), Bytes(bytes));
      } else if (!group.early_abort) {
        group.early_abort.emplace(from, bytes);
      }
      return;
    case ControlKind::goodbye:
      stream.ends_at = message.bytes;
      stream.is_left = true;
      return notify(group);
    case ControlKind::credit:
      if (message.bytes > window_ - stream.credit) throw_corrupt(origin, "it grants credit for more than was sent");
      stream.credit += message.bytes;
      if (group.awaits(from, &Mesh::Interest::writable)) notify(group);
      return;
    default: return notify(group);
  }
}

bool SharedLinks::end(GroupLinks& group, const Error& error) {
  if (group.is_aborted.exchange(true)) return false;
  group.reason = error;
  for (auto& [number, stream] : group.streams) stream.arrived.clear();
  notify(group);
  return true;
}

void SharedLinks::tell_abort(GroupLinks& group, const Error& error, const Bytes& encoded) {
  if (!end(group, error)) return;
  for (const GroupStream* stream : group.by_rank) {
    if (stream != nullptr) send_control(stream->peer, encoded);
  }
}

void SharedLinks::abort(GroupLinks& group, const Error& error) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    tell_abort(group, error, encode_abort(group.id, error));
  } catch (const std::exception&) {
    group.is_aborted = true;  // no memory for the text
    notify(group);
  }
}

void SharedLinks::end_all(int from, ErrorKind kind, const Text& text) {
  for (auto& [id, group] : groups_) {
    const int number = group.is_open ? group.rank_of(from) : -1;
    if (number < 0) continue;
    const Error error(kind, text(group.by_rank[static_cast<std::size_t>(number)]->name, group.name),
                      {.rank = group.rank, .peer = number});
    tell_abort(group, error, encode_abort(group.id, error));
  }
}

void SharedLinks::end_damaged(int from, const Error& damage) {
  const Text text = [&](const std::string& name, const std::string& self) {
    return fmt::format(
        "data from {} to {} was damaged on its way: {}; look for a bad network card, cable, switch or "
        "memory between them",
        name, self, damage.what());
  };
  peer(from).damaged = text(peer(from).name, peer(rank_).name);
  end_all(from, damage.kind(), text);
}

Error SharedLinks::reason(const GroupLinks& group) {
  const std::lock_guard lock(mutex_);
  return group.reason ? Error(*group.reason) : Error(ErrorKind::aborted, "the group was ended", {.rank = group.rank});
}

std::optional<int> SharedLinks::take_death(GroupLinks& group) {
  if (group.unreported == 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  for (auto& [number, stream] : group.streams) {
    if (!stream.is_dead || stream.is_reported) continue;
    stream.is_reported = true;
    --group.unreported;
    return group.rank_of(number);
  }
  return std::nullopt;
}

std::string SharedLinks::why_dead(const GroupStream& stream) {
  const std::lock_guard lock(mutex_);
  return peer(stream.peer).why;
}

}  // namespace lockstep::internal
