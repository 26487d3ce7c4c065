#include "lockstep/transport/local_mesh.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/wait_until.h"

namespace lockstep {
namespace {

// One direction of a link. The sender owns `sent`, the receiver owns `received`; both only grow.
struct Ring {
  explicit Ring(std::size_t bytes) : memory(bytes) {}

  std::size_t filled() const { return sent.load(std::memory_order_acquire) - received.load(std::memory_order_acquire); }
  std::size_t room() const { return memory.size() - filled(); }

  std::size_t put(ByteSpan data) {
    const std::size_t at = sent.load(std::memory_order_relaxed);
    const std::size_t offset = at % memory.size();
    const std::size_t bytes = std::min({data.size(), room(), memory.size() - offset});
    if (bytes != 0) std::memcpy(&memory[offset], data.data(), bytes);
    sent.store(at + bytes, std::memory_order_release);
    return bytes;
  }

  std::size_t take(MutableByteSpan data) {
    const std::size_t at = received.load(std::memory_order_relaxed);
    const std::size_t offset = at % memory.size();
    const std::size_t bytes = std::min({data.size(), filled(), memory.size() - offset});
    if (bytes != 0) std::memcpy(data.data(), &memory[offset], bytes);
    received.store(at + bytes, std::memory_order_release);
    return bytes;
  }

  std::vector<std::byte> memory;
  std::atomic<std::size_t> sent{0};
  std::atomic<std::size_t> received{0};
};

// Where one rank sleeps, and how others wake it.
struct Bell {
  std::mutex mutex;
  std::condition_variable ringing;
  bool woken = false;  // by this rank's own wake(); guarded by mutex

  void ring() {
    { const std::lock_guard lock(mutex); }
    ringing.notify_one();
  }
};

struct Network {
  Network(int ranks, std::size_t ring_bytes) : size(ranks), bells(static_cast<std::size_t>(ranks)), gone(bells.size()) {
    for (int i = 0; i < ranks * ranks; ++i) rings.push_back(std::make_unique<Ring>(ring_bytes));
  }

  Ring& ring(int from, int to) { return *rings[static_cast<std::size_t>(from * size + to)]; }
  Bell& bell(int rank) { return bells[static_cast<std::size_t>(rank)]; }
  std::atomic<bool>& left(int rank) { return gone[static_cast<std::size_t>(rank)]; }

  void abort(const Error& error) {
    {
      const std::lock_guard lock(reason_mutex);
      if (aborted) return;
      reason = error;
      aborted = true;
    }
    for (Bell& each : bells) each.ring();
  }

  void check() {
    if (!aborted.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(reason_mutex);
    throw Error(*reason);
  }

  const int size;
  std::vector<std::unique_ptr<Ring>> rings;  // [from][to]
  std::vector<Bell> bells;
  std::vector<std::atomic<bool>> gone;
  std::atomic<bool> aborted{false};
  std::mutex reason_mutex;
  std::optional<Error> reason;
};

class LocalMesh final : public Mesh {
 public:
  LocalMesh(std::shared_ptr<Network> network, int rank) : network_(std::move(network)), rank_(rank) {}
  ~LocalMesh() override {
    network_->left(rank_) = true;
    for (int peer = 0; peer < size(); ++peer) network_->bell(peer).ring();
  }

  int rank() const override { return rank_; }
  int size() const override { return network_->size; }
  std::string_view name() const override { return "in-process"; }

  std::size_t send_some(int peer, ByteSpan data) override {
    network_->check();
    if (network_->left(peer)) throw lost(peer);
    const std::size_t bytes = network_->ring(rank_, peer).put(data);
    if (bytes != 0) network_->bell(peer).ring();
    return bytes;
  }

  std::size_t recv_some(int peer, MutableByteSpan data) override {
    network_->check();
    const bool left = network_->left(peer);  // read first: what was sent before it left is still to be received
    const std::size_t bytes = network_->ring(peer, rank_).take(data);
    if (bytes != 0) network_->bell(peer).ring();
    if (bytes == 0 && left && !data.empty()) throw lost(peer);
    return bytes;
  }

  void wait(std::span<const Interest> interests, Deadline deadline) override {
    network_->check();
    if (interests.empty()) return;
    Bell& bell = network_->bell(rank_);
    const auto awake = [&] {
      return bell.woken || network_->aborted || std::ranges::any_of(interests, [&](auto& i) { return ready(i); });
    };
    std::unique_lock lock(bell.mutex);
    if (!wait_until(bell.ringing, lock, deadline, awake)) {
      throw Error(ErrorKind::timeout, "no peer was ready", {.rank = rank_});
    }
    bell.woken = false;
    lock.unlock();
    network_->check();
  }

  void wake() noexcept override {
    Bell& bell = network_->bell(rank_);
    {
      const std::lock_guard lock(bell.mutex);
      bell.woken = true;
    }
    bell.ringing.notify_one();
  }

  void abort(const Error& error) noexcept override { network_->abort(error); }

 private:
  bool ready(const Interest& interest) const {
    if (network_->left(interest.peer)) return true;
    if (interest.readable && network_->ring(interest.peer, rank_).filled() != 0) return true;
    return interest.writable && network_->ring(rank_, interest.peer).room() != 0;
  }

  Error lost(int peer) const {
    return Error(ErrorKind::peer_lost, fmt::format("rank {} has left the group", peer), {.rank = rank_, .peer = peer});
  }

  const std::shared_ptr<Network> network_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Mesh>> make_arena_meshes(int size, std::size_t ring_bytes) {
  const auto network = std::make_shared<Network>(size, ring_bytes);
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (int rank = 0; rank < size; ++rank) meshes.push_back(std::make_unique<LocalMesh>(network, rank));
  return meshes;
}

}  // namespace lockstep
