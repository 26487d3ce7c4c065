#include "lockstep/transport/arena.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <new>
#include <random>
#include <span>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/machine.h"
#include "lockstep/transport/byte_rings.h"
#include "lockstep/transport/futex.h"
#include "lockstep/transport/process_state.h"
#include "lockstep/transport/spread.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using arena::RankControl;
using arena::RankState;
using arena::Slot;

constexpr Duration kYieldFor = 500us;  // see Arena
// How many waits for a rank on this core it takes to look for another core; looking costs about as much as they do.
constexpr int kSharedWaits = 16;
// With more ranks than this nobody looks; cores beyond are not gone to.
constexpr std::size_t kMostCores = CPU_SETSIZE;
// Dead peers ring no bell: a sleeper looks for them this often.
constexpr Duration kLivenessPeriod = 20ms;
// Stopped ones are looked for this often, once the wait is so long that somebody may wonder.
constexpr Duration kStoppedPeriod = 250ms;
constexpr Duration kStoppedAfter = 2500ms;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

// What staging takes; the heap gets the rest.
constexpr std::size_t kLeastSegmentBytes = arena::kStagingBuffers * arena::kStagingBytes;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t controls_offset() { return round_up(sizeof(arena::ArenaHeader), arena::kPage); }
constexpr std::size_t slots_offset(int ranks) {
  return round_up(controls_offset() + static_cast<std::size_t>(ranks) * sizeof(RankControl), arena::kPage);
}
constexpr std::size_t message_rings_offset(int ranks) {
  return round_up(slots_offset(ranks) + static_cast<std::size_t>(ranks) * arena::kSlots * sizeof(Slot), arena::kPage);
}
std::size_t segments_offset(int ranks) {
  return round_up(message_rings_offset(ranks) + ByteRings::region_bytes(ranks), kHugePage);
}

}  // namespace

std::size_t arena_bytes(int ranks, std::size_t segment_bytes) {
  return segments_offset(ranks) + static_cast<std::size_t>(ranks) * segment_bytes;
}

std::size_t checked_segment_bytes(const arena::ArenaHeader& header, std::size_t bytes, int ranks) {
  const Origin origin("the head of shared memory");
  if (bytes < arena_bytes(ranks, kLeastSegmentBytes)) {
    throw_corrupt(origin, fmt::format("it has {} bytes, which are too few for {} ranks", bytes, ranks));
  }
  // Read once: the memory belongs to other processes, too.
  const std::uint64_t told = const_cast<const volatile std::uint64_t&>(header.segment_bytes);
  const std::size_t most = (bytes - segments_offset(ranks)) / static_cast<std::size_t>(ranks);
  return checked_between(told, kLeastSegmentBytes, most, "size of a segment", origin);
}

std::size_t default_segment_bytes() {
  return std::max(round_up(machine_memory_bytes() / 2, kHugePage), std::size_t{64} << 20);
}

void format_arena(const Mapping& mapping, int ranks, std::size_t segment_bytes, std::uint64_t generation,
                  std::uint64_t nonce) {
  std::byte* base = mapping.data();
  mapping.populate(base, message_rings_offset(ranks));
  auto* header = new (base) arena::ArenaHeader{};
  header->version = arena::kVersion;
  header->ranks = static_cast<std::uint32_t>(ranks);
  header->segment_bytes = segment_bytes;
  header->generation = generation;
  header->nonce = nonce;
  // The rest of the memory is zero, which is the initial state of every word in it.
  header->magic = arena::kMagic;
}

Arena::Arena(std::shared_ptr<Mapping> mapping, int rank, std::vector<ArenaPeer> peers, std::string_view kind)
    : mapping_(std::move(mapping)),
      rank_(rank),
      size_(static_cast<int>(peers.size())),
      kind_(kind),
      peers_(std::move(peers)) {
  std::byte* base = mapping_->data();
  header_ = reinterpret_cast<arena::ArenaHeader*>(base);
  controls_ = reinterpret_cast<RankControl*>(base + controls_offset());
  slots_ = reinterpret_cast<Slot*>(base + slots_offset(size_));
  segments_ = base + segments_offset(size_);
  segment_bytes_ = checked_segment_bytes(*header_, mapping_->size(), size_);
  // Also for the other ranks' segments: each process maps their pages, too.
  mapping_->prefer_huge_pages(segments_, static_cast<std::size_t>(size_) * segment_bytes_);
  std::byte* mine = segment(rank_);
  heap_ = std::make_shared<ArenaHeap>(mapping_, mine + kLeastSegmentBytes, segment_bytes_ - kLeastSegmentBytes);
  control(rank_).state.store(RankState::joined, std::memory_order_release);
}

Arena::~Arena() {
  if (!fork_guard_.is_here()) return;
  control(rank_).state.store(RankState::left, std::memory_order_release);
  ring();
}

std::optional<std::size_t> Arena::offset_of(const std::byte* data, std::size_t bytes) const {
  const std::byte* mine = segment(rank_);
  if (data < mine || bytes > segment_bytes_) return std::nullopt;
  const auto offset = static_cast<std::size_t>(data - mine);
  if (offset > segment_bytes_ - bytes) return std::nullopt;
  return offset;
}

std::byte* Arena::message_rings() const { return mapping_->data() + message_rings_offset(size_); }

void Arena::ring() const {
  // Pairs with the fence in await_slowly(): either the sleeper sees our word, or we see that it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int peer = 0; peer < size_; ++peer) {
    RankControl& other = controls_[peer];
    if (peer == rank_ || other.sleeping.load(std::memory_order_relaxed) == 0) continue;
    other.doorbell.fetch_add(1, std::memory_order_release);
    futex_wake_all(&other.doorbell);
  }
}

std::optional<Stall> Arena::lost_peer(const std::function<bool(int)>& waiting_for) const {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const bool left = control(peer).state.load(std::memory_order_acquire) == RankState::left;
    const bool dead = peers_[static_cast<std::size_t>(peer)].process.has_ended();
    // A peer may write its word and end between the look at the word and the look at its state.
    if ((left || dead) && waiting_for(peer)) return Stall{left ? Stall::Cause::left : Stall::Cause::died, peer, {}, 0};
  }
  return std::nullopt;
}

Stall Arena::stall_so_far(Stall::Cause cause, const std::function<bool(int)>& waiting_for, Duration waited) const {
  Stall stall;
  stall.cause = cause;
  stall.elapsed_seconds = seconds(waited);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && waiting_for(peer)) stall.missing.push_back(peer);
  }
  return stall;
}

char Arena::peer_state(int rank) const { return process_state(peers_[static_cast<std::size_t>(rank)].pid); }

bool Arena::warn_of_stopped(const std::function<bool(int)>& waiting_for, Duration waited) const {
  std::string stopped;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || !waiting_for(peer)) continue;
    const char state = peer_state(peer);
    if (!is_stopped(state)) continue;
    stopped += (stopped.empty() ? "" : "; ") + peer_name(peer) + " is " + std::string(describe_process_state(state));
  }
  if (stopped.empty()) return false;
  log_warning(fmt::format("a collective has waited {:.1f} s: {}", seconds(waited), stopped));
  return true;
}

void Arena::stop(const Error& error) const {
  abort(error);
  check_abort();
  throw Error(error);
}

void Arena::leave_shared_core(const std::function<bool(int)>& waiting_for) const {
  const auto core_of = [this](int rank) { return control(rank).core.load(std::memory_order_relaxed); };
  bool shared = false;
  for (int peer = 0; peer < rank_; ++peer) shared = shared || (core_of(peer) == core_of(rank_) && waiting_for(peer));
  if (!shared || ++shared_waits_ < kSharedWaits) return;
  shared_waits_ = 0;
  std::array<std::uint32_t, kMostCores> cores{};  // by rank
  std::array<int, kMostCores> memory;
  const auto ranks = static_cast<std::size_t>(size_);
  if (ranks > cores.size()) return;
  for (int rank = 0; rank < size_; ++rank) cores[static_cast<std::size_t>(rank)] = core_of(rank);
  const int core = emptier_core(std::span(cores).first(ranks), rank_, allowed_cores(memory));
  if (core >= 0) move_to_core(core);
}

void Arena::await_slowly(const std::function<bool()>& ready, const std::function<bool(int)>& waiting_for,
                         const std::function<Error(const Stall&)>& explain, Deadline deadline) const {
  leave_shared_core(waiting_for);
  const TimePoint start = steady_clock().now();
  TimePoint now = start;
  while (now - start < kYieldFor && !deadline.expired(now)) {
    ::sched_yield();
    if (ready() || spin(ready, waiting_for)) return;
    check_abort();
    now = steady_clock().now();
  }
  RankControl& mine = control(rank_);
  TimePoint look = start + kStoppedAfter;  // for stopped peers, until one is found
  WaitReports reports(first_report_);
  for (;;) {
    if (now >= look) look = warn_of_stopped(waiting_for, now - start) ? TimePoint::max() : now + kStoppedPeriod;
    if (reports.is_due(now - start)) {
      log_warning(explain(stall_so_far(Stall::Cause::none, waiting_for, now - start)).what());
    }
    if (auto stall = lost_peer(waiting_for)) {
      stall->elapsed_seconds = seconds(steady_clock().now() - start);
      stop(explain(*stall));
    }
    const std::uint32_t heard = mine.doorbell.load(std::memory_order_acquire);
    mine.sleeping.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with ring()
    const bool done = ready();
    now = steady_clock().now();
    if (!done && !deadline.expired(now) && !has_abort(header_->abort)) {
      futex_wait(&mine.doorbell, heard, std::min<Duration>(kLivenessPeriod, deadline.remaining(now)));
    }
    mine.sleeping.store(0, std::memory_order_relaxed);
    if (done || ready()) return;
    check_abort();
    if (deadline.expired(now)) {
      stop(explain(stall_so_far(Stall::Cause::deadline, waiting_for, now - start)));
    }
  }
}

void Arena::abort(const Error& error) const noexcept {
  if (!fork_guard_.is_here()) return;
  if (record_abort(header_->abort, error)) ring();
}

std::vector<std::unique_ptr<Arena>> make_local_arenas(int ranks, const ArenaOptions& options) {
  const std::size_t segment =
      options.segment_bytes != 0 ? round_up(options.segment_bytes, kHugePage) : default_segment_bytes();
  auto mapping = std::make_shared<Mapping>(Mapping::create(arena_bytes(ranks, segment)));
  format_arena(*mapping, ranks, segment, options.generation, std::random_device{}());
  std::vector<std::unique_ptr<Arena>> arenas;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<ArenaPeer> peers(static_cast<std::size_t>(ranks));
    for (int peer = 0; peer < ranks; ++peer)
      peers[static_cast<std::size_t>(peer)].name = "rank " + std::to_string(peer);
    arenas.push_back(std::make_unique<Arena>(mapping, rank, std::move(peers), "in-process"));
  }
  return arenas;
}

}  // namespace lockstep
