#include "lockstep/comm/transport/shared_links.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/base/private_fd.h"
#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/transport/control_message.h"
#include "lockstep/comm/transport/link_claim.h"

namespace lockstep::internal {

SharedLinks::SharedLinks(int rank, TcpLinks made, const TcpMeshSettings& settings)
    : rank_(rank),
      connections_(settings.connections),
      checksums_(settings.checksums),
      is_complete_(settings.size <= settings.complete_up_to),
      neighbours_(settings.neighbours),
      epoll_(PrivateFd::open([] { return ::epoll_create1(EPOLL_CLOEXEC); })),
      wake_(PrivateFd::open([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {
  if (!epoll_ || !wake_) throw system_error("making event descriptors for connections", errno);
  watch_leader();
  const std::string self = made.links[static_cast<std::size_t>(rank)].who;
  for (const TcpLink& link : made.links) {
    peers_.push_back(
        std::make_unique<TcpPeer>(static_cast<int>(peers_.size()), link.who, self, settings, open_groups_));
  }
  if (!made.listeners.empty()) {
    const LinkOpener::Report report{
        .opened = [this](int peer, std::uint32_t connection,
                         UniqueFd fd) { adopt(this->peer(peer), connection, std::move(fd)); },
        .failed =
            [this](int number, const std::string& why) {
              TcpPeer& peer = this->peer(number);
              const PeerLock lock(*this, peer);
              peer.fail(why);
            },
    };
    opener_ = std::make_unique<LinkOpener>(settings, made.links, std::move(made.addresses), std::move(made.listeners),
                                           report);
  }
  for (const auto& peer : peers_) {
    TcpLink& link = made.links[static_cast<std::size_t>(peer->number())];
    if (link.control) adopt(*peer, kControlLink, std::move(link.control));
    for (std::uint32_t i = 0; i < link.data.size(); ++i) {
      if (link.data[i]) adopt(*peer, i + 1, std::move(link.data[i]));
    }
  }
}

std::size_t SharedLinks::sockets() const {
  const auto of = [this](const auto& peer) {
    return (peer->has_control() ? 1 : 0) + (peer->has_data() ? static_cast<std::size_t>(connections_) : 0);
  };
  std::size_t count = 0;
  for (const auto& peer : peers_) count += of(peer);
  return count;
}

void SharedLinks::adopt(TcpPeer& peer, std::uint32_t connection, UniqueFd fd) {
  const int descriptor = fd.get();
  const PeerLock lock(*this, peer);
  try {
    watch_connection(peer, connection, descriptor);
    peer.adopt(connection, std::move(fd));
  } catch (const Error& error) {  // without memory for the event queue
    peer.fail(error.what());
  }
}

void SharedLinks::want(const TcpPeer& peer, LinkOpener::Part part) noexcept {
  const bool is_there = part == LinkOpener::Part::data ? peer.has_data() : peer.has_control();
  if (!is_there && opener_ != nullptr) opener_->want(peer.number(), part);
}

SharedLinks::PeerLock::~PeerLock() {
  const Ended ended = peer_.take_ended();
  lock_.unlock();
  for (const auto& each : ended) links_.tell_abort(*each);
  links_.serve(peer_, nullptr);
}

// Takes the events of a peer, or leaves them to the thread that holds its lock.
void SharedLinks::serve(TcpPeer& peer, const GroupLinks* me) noexcept {
  while (peer.has_events()) {
    std::unique_lock lock(peer.mutex, std::try_to_lock);
    if (!lock) return;
    peer.take_events(me);
    const Ended ended = peer.take_ended();
    lock.unlock();
    for (const auto& each : ended) tell_abort(*each);
  }
}

std::size_t SharedLinks::groups_with(int number) {
  TcpPeer& peer = this->peer(number);
  const PeerLock lock(*this, peer);
  return peer.streams();
}

std::shared_ptr<GroupLinks> SharedLinks::open(GroupId id, int rank, const std::vector<int>& connected,
                                              const std::vector<std::string>& names) {
  const auto group = std::make_shared<GroupLinks>(id, rank, names[static_cast<std::size_t>(rank)], wake_.get());
  group->peers = connected;
  group->bell_message = frame(encode(ControlKind::bell, id), kMaxControlBytes);
  const Error exists(ErrorKind::invalid_argument, fmt::format("group {:016x} already exists", id), {.rank = rank});
  for (const int number : connected) {
    if (number == rank_) {
      group->by_rank.push_back(nullptr);
      continue;
    }
    TcpPeer& peer = this->peer(number);
    const PeerLock lock(*this, peer);
    group->by_rank.push_back(peer.reserve(id));
    if (group->by_rank.back() == nullptr) throw Error(exists);
  }
  if (!open_groups_.add(id)) throw Error(exists);
  for (const auto& each : peers_) {
    const PeerLock lock(*this, *each);
    const int number = group->rank_of(each->number());
    GroupStream* const stream = number < 0 ? nullptr : group->by_rank[static_cast<std::size_t>(number)];
    if (stream != nullptr) each->attach(*stream, group, names[static_cast<std::size_t>(number)]);
    if (number < 0) each->refuse(id);
    const int size = static_cast<int>(names.size());
    if (stream != nullptr && are_neighbours(neighbours_, rank, number, size)) want_control(*stream);
  }
  return group;
}

void SharedLinks::close(GroupLinks& group) noexcept {
  for (GroupStream* const stream : group.by_rank) {
    if (stream == nullptr) continue;
    TcpPeer& peer = this->peer(stream->peer);
    const PeerLock lock(*this, peer);
    peer.detach(*stream);
  }
  open_groups_.remove(group.id);
}

SharedLinks::Step SharedLinks::send(GroupStream& stream, ByteSpan data) {
  want_data(stream);
  TcpPeer& peer = this->peer(stream.peer);
  const PeerLock lock(*this, peer);
  return peer.send(stream, data);
}

SharedLinks::Step SharedLinks::receive(GroupStream& stream, MutableByteSpan space) {
  TcpPeer& peer = this->peer(stream.peer);
  const PeerLock lock(*this, peer);
  return peer.receive(stream, space);
}

void SharedLinks::ring_bell(const GroupLinks& group, const GroupStream& stream) {
  want_control(stream);
  TcpPeer& peer = this->peer(stream.peer);
  const PeerLock lock(*this, peer);
  peer.send_control(group.bell_message);
}

void SharedLinks::tell_abort(const GroupLinks& group) noexcept {
  for (const int number : group.peers) {
    TcpPeer& peer = this->peer(number);
    const PeerLock lock(*this, peer);
    peer.tell_abort(group);
  }
}

void SharedLinks::abort(GroupLinks& group, const Error& error) noexcept {
  try {
    if (group.end(error, frame(encode_abort(group.id, error), kMaxControlBytes))) tell_abort(group);
  } catch (const std::exception&) {
    group.is_aborted = true;  // no memory for the text
    group.notify();
  }
}

std::optional<int> SharedLinks::take_death(GroupLinks& group) {
  if (group.unreported == 0) return std::nullopt;
  for (std::size_t rank = 0; rank < group.by_rank.size(); ++rank) {
    GroupStream* const stream = group.by_rank[rank];
    if (stream == nullptr || !stream->is_dead || stream->is_reported) continue;
    stream->is_reported = true;
    --group.unreported;
    return static_cast<int>(rank);
  }
  return std::nullopt;
}

std::string SharedLinks::why_dead(const GroupStream& stream) {
  TcpPeer& peer = this->peer(stream.peer);
  const PeerLock lock(*this, peer);
  return peer.why_dead();
}

void SharedLinks::look_at_control(const GroupLinks& group) {
  for (const int number : group.peers) {
    TcpPeer& peer = this->peer(number);
    const PeerLock lock(*this, peer);
    peer.read_control();
  }
}

}  // namespace lockstep::internal
