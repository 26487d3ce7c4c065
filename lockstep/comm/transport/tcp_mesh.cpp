#include "lockstep/comm/transport/tcp_mesh.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "lockstep/base/fork_guard.h"
#include "lockstep/base/hash.h"
#include "lockstep/comm/health/peer_failure.h"
#include "lockstep/comm/transport/byte_rings.h"
#include "lockstep/comm/transport/doorbell.h"
#include "lockstep/comm/transport/shared_links.h"
#include "lockstep/comm/transport/waiter.h"

namespace lockstep::internal {
namespace {

constexpr int kSpins = 100;
constexpr Duration kYieldFor = std::chrono::microseconds(100);

class TcpMesh final : public Mesh {
 public:
  TcpMesh(std::shared_ptr<SharedLinks> links, const TcpGroup& group);
  ~TcpMesh() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(names_.size()); }
  std::string_view name() const override { return rings_ ? "tcp and shared memory" : "tcp"; }
  std::string peer_name(int peer) const override { return names_[static_cast<std::size_t>(peer)]; }
  bool connects_when_needed() const override { return !links_->is_complete(); }
  bool is_connected(int peer) const override { return place(peer) >= 0 || links_->has_data_with(stream(peer)); }
  std::size_t send_some(int peer, ByteSpan data) override;
  std::size_t recv_some(int peer, MutableByteSpan data) override;
  void wait(std::span<const Interest> interests, Deadline deadline) override;
  void wake() noexcept override;
  void announce(ByteView bytes) noexcept override;
  std::optional<Announcement> take_announcement() override { return links_->take_announcement(*group_); }
  void abort(const Error& error) noexcept override;

 private:
  class Wait;

  GroupStream& stream(int peer) const { return *group_->by_rank[static_cast<std::size_t>(peer)]; }
  // Of a peer whose data goes through memory: its place among those who share it; else -1.
  int place(int peer) const { return places_[static_cast<std::size_t>(peer)]; }
  bool is_ready(std::span<const Interest> interests);
  void check_aborted() const;
  void report_dead();
  Error lost(int rank, const std::string& why);
  std::size_t moved(int rank, const SharedLinks::Step& step);

  // Through memory.
  ByteRing ring_to(int peer) const { return rings_->ring(place_, place(peer)); }
  ByteRing ring_from(int peer) const { return rings_->ring(place(peer), place_); }
  arena::Doorbell& bell(int place) const { return rings_->control().bells(place).messages; }
  RingEnds ends(int rank) const { return {rank_, rank, names_[static_cast<std::size_t>(rank)]}; }
  void ring_bell(int peer) const;

  const ForkGuard fork_guard_;
  const int rank_;
  const std::vector<std::string> names_;
  std::optional<ByteRings> rings_;
  std::vector<int> places_;
  int place_ = -1;  // of this rank
  const std::shared_ptr<SharedLinks> links_;
  const std::shared_ptr<GroupLinks> group_;
  std::atomic<bool> is_woken_{false};  // for the present or the next wait()
};

// Sleeps in one place for all peers: ranks that share memory ring the bell over their control connection.
class TcpMesh::Wait final : public Waiter {
 public:
  Wait(TcpMesh& mesh, std::span<const Interest> interests, Duration yield_for)
      : Waiter({.yield_for = yield_for, .look_period = Duration::max()}), mesh_(mesh), interests_(interests) {}

  bool is_ready() override { return mesh_.is_ready(interests_); }
  bool is_ready_after_yield() override {
    mesh_.links_->look(*mesh_.group_);
    return is_ready();
  }
  void look(Duration) override {}  // is_ready() does: the death of a peer is an event

  void sleep(Duration most) override {
    const auto sleep = [&] { mesh_.links_->sleep(*mesh_.group_, interests_, most); };
    if (!mesh_.rings_) return sleep();
    for (const Interest& each : interests_) {
      if (each.writable && mesh_.place(each.peer) >= 0) mesh_.ring_to(each.peer).await_room();
    }
    bool slept = false;
    sleep_at(
        mesh_.bell(mesh_.place_), [this] { return is_ready(); },
        [&] {
          slept = true;
          sleep();
        });
    if (!slept) mesh_.links_->look(*mesh_.group_);
  }

 private:
  TcpMesh& mesh_;
  const std::span<const Interest> interests_;
};

TcpMesh::TcpMesh(std::shared_ptr<SharedLinks> links, const TcpGroup& group)
    : rank_(group.rank),
      names_(group.names),
      rings_(group.node.rings),
      places_(group.ranks.size(), -1),
      links_(std::move(links)),
      group_(links_->open(hash_of(group.name), group.rank, group.ranks, group.names)) {
  for (std::size_t place = 0; place < group.node.ranks.size(); ++place) {
    const int each = group.node.ranks[place];
    (each == rank_ ? place_ : places_[static_cast<std::size_t>(each)]) = static_cast<int>(place);
  }
}

TcpMesh::~TcpMesh() {
  if (fork_guard_.is_here()) links_->close(*group_);  // a forked child's goodbye would be its parent's
}

std::size_t TcpMesh::send_some(int to, ByteSpan data) {
  check_aborted();
  GroupStream& stream = this->stream(to);
  if (stream.is_left || (place(to) >= 0 && stream.is_dead)) throw lost(to, "");
  if (place(to) < 0) return moved(to, links_->send(stream, data));
  const std::size_t bytes = ring_to(to).put(data, ends(to));
  if (bytes != 0) ring_bell(to);
  return bytes;
}

std::size_t TcpMesh::recv_some(int from, MutableByteSpan data) {
  check_aborted();
  if (data.empty()) return 0;
  GroupStream& stream = this->stream(from);
  if (place(from) < 0) {
    const std::size_t bytes = moved(from, links_->receive(stream, data));
    if (bytes == 0) check_aborted();  // by damage
    return bytes;
  }
  // Looked at first: what was sent before it left is still to be received.
  const bool over = stream.is_over() || stream.is_dead;
  const ByteRing ring = ring_from(from);
  const std::size_t bytes = ring.take(data, ends(from));
  if (bytes == 0 && over) throw lost(from, "");
  if (bytes != 0 && ring.wakes_sender()) ring_bell(from);
  return bytes;
}

std::size_t TcpMesh::moved(int rank, const SharedLinks::Step& step) {
  if (!step.failure.empty()) throw lost(rank, step.failure);
  if (step.is_blocked && stream(rank).is_dead) throw lost(rank, "");
  return step.bytes;
}

void TcpMesh::ring_bell(int peer) const {
  // Either the sleeper sees what we did, or we see that it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<std::uint32_t>& sleeping = bell(place(peer)).sleeping;
  if (sleeping.load(std::memory_order_relaxed) == 0 || sleeping.exchange(0) == 0) return;
  links_->ring_bell(*group_, stream(peer));
}

bool TcpMesh::is_ready(std::span<const Interest> interests) {
  check_aborted();
  if (is_woken_ || group_->announcements != 0) return true;
  bool has_far = false;
  for (const Interest& each : interests) {
    if (place(each.peer) < 0) {
      has_far = true;
      continue;
    }
    if (stream(each.peer).is_over() || stream(each.peer).is_dead ||
        (each.readable && ring_from(each.peer).filled() != 0))
      return true;
    if (each.writable && ring_to(each.peer).has_room()) return true;
  }
  if (has_far && links_->is_ready(*group_, interests)) return true;
  report_dead();
  return false;
}

void TcpMesh::wait(std::span<const Interest> interests, Deadline deadline) {
  if (interests.empty()) {
    links_->look(*group_);
    check_aborted();
    return report_dead();
  }
  for (const Interest& each : interests) {
    if (!each.is_awaited) continue;
    if (place(each.peer) >= 0) {
      links_->want_control(stream(each.peer));
    } else {
      links_->want_data(stream(each.peer));
    }
  }
  const auto ready = [&] { return is_ready(interests); };
  // Only through memory does a peer answer before a system call would have returned.
  const bool is_near = std::ranges::any_of(interests, [&](const Interest& each) { return place(each.peer) >= 0; });
  const bool done = spin_until(ready, is_near ? kSpins : 0) ||
                    Wait(*this, interests, is_near ? kYieldFor : Duration::zero()).wait(deadline);
  if (!done) throw Error(ErrorKind::timeout, "no peer was ready before the deadline", {.rank = rank_});
  is_woken_ = false;
}

void TcpMesh::announce(ByteView bytes) noexcept {
  if (fork_guard_.is_here()) links_->announce(*group_, bytes);
}

void TcpMesh::abort(const Error& error) noexcept {
  if (fork_guard_.is_here()) links_->abort(*group_, error);
}

void TcpMesh::wake() noexcept {
  is_woken_ = true;
  group_->notify();
}

void TcpMesh::check_aborted() const {
  if (group_->is_aborted) throw group_->why();
}

void TcpMesh::report_dead() {
  if (const auto dead = SharedLinks::take_death(*group_)) throw lost(*dead, "");
}

Error TcpMesh::lost(int rank, const std::string& why) {
  // Control connections may know better why.
  links_->look_at_control(*group_);
  check_aborted();
  const GroupStream& stream = this->stream(rank);
  PeerFailure failure{.peer = rank, .name = stream.name, .how = Departure::left};
  if (!stream.is_left) {
    failure.how = links_->has_control_with(stream) ? Departure::lost : Departure::gone;
    failure.why = stream.is_dead ? links_->why_dead(stream) : why;
  }
  return peer_lost(failure, rank_);
}

}  // namespace

std::shared_ptr<SharedLinks> connect_shared_links(const TcpMeshSettings& settings, Store& store, Deadline deadline) {
  return std::make_shared<SharedLinks>(settings.rank, connect_tcp_links(settings, store, deadline), settings);
}

std::unique_ptr<Mesh> open_tcp_mesh(std::shared_ptr<SharedLinks> links, const TcpGroup& group) {
  return std::make_unique<TcpMesh>(std::move(links), group);
}

std::unique_ptr<Mesh> connect_tcp_mesh(const TcpMeshSettings& settings, Store& store, Deadline deadline) {
  std::shared_ptr<SharedLinks> links = connect_shared_links(settings, store, deadline);
  TcpGroup group{.name = settings.name, .rank = settings.rank, .node = settings.node};
  for (int each = 0; each < settings.size; ++each) {
    group.ranks.push_back(each);
    group.names.push_back(links->name(each));
  }
  return open_tcp_mesh(std::move(links), group);
}

}  // namespace lockstep::internal
