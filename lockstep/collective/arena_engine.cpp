#include "lockstep/collective/arena_engine.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/collective/piece.h"
#include "lockstep/collective/reduce.h"
#include "lockstep/collective/segment_cursor.h"
#include "lockstep/collective/slice.h"
#include "lockstep/collective/staged.h"
#include "lockstep/health/peer_failure.h"
#include "lockstep/observe/process_recorder.h"

namespace lockstep {
namespace {

using arena::SegmentRef;
using arena::Slot;

// All-reduces at least this large are done in place where they can be: below, a second synchronisation costs more than
// reading every rank's whole operand.
constexpr std::size_t kInPlaceBytes = 8 * 1024;

// Bytes that a rank has to show to the others, or would if it were the root.
std::size_t contribution_bytes(const Collective& c, int rank, int size) {
  const std::size_t element = element_size(c.dtype);
  const auto n = static_cast<std::size_t>(size);
  if (c.kind == OpKind::all_to_all) {
    const auto row = c.counts.subspan(static_cast<std::size_t>(rank) * n, n);
    return std::accumulate(row.begin(), row.end(), std::size_t{0}) * element;
  }
  const bool in_parts = c.kind == OpKind::reduce_scatter || c.kind == OpKind::scatter;
  return c.count * element * (in_parts ? n : 1);
}

// The same on all ranks: what everybody shows fits into the slots.
bool is_small(const Collective& c, int size) {
  const bool reduces = reduces_in_place(c.kind);
  if (c.kind != OpKind::all_to_all) {
    return contribution_bytes(c, 0, size) <= (reduces ? kInPlaceBytes : arena::kSlotPayloadBytes);
  }
  for (int rank = 0; rank < size; ++rank) {
    if (contribution_bytes(c, rank, size) > arena::kSlotPayloadBytes) return false;
  }
  return true;
}

std::span<const Segment> contribution(const Collective& c, int rank) {
  switch (c.kind) {
    case OpKind::all_reduce:
    case OpKind::reduce: return c.output;
    case OpKind::broadcast: return rank == c.root ? c.output : std::span<const Segment>{};
    case OpKind::all_gather:
    case OpKind::gather:
    case OpKind::scatter:
    case OpKind::all_to_all:
    case OpKind::reduce_scatter: return c.input;
    case OpKind::barrier: break;
  }
  return {};
}

std::byte* payload_of(Slot& slot, std::size_t bytes) {
  return bytes <= arena::kInlineBytes ? slot.inlined : slot.payload;
}

bool reached(const std::atomic<std::uint32_t>& word, std::uint32_t target) {
  return static_cast<std::int32_t>(word.load(std::memory_order_acquire) - target) >= 0;
}

// Takes a cache line away from those who have read it, ahead of the write to it. x86 has an instruction for it, which
// compilers use only if they are told that it exists; processors that do not have it pass it by.
#if defined(__x86_64__)
__attribute__((target("prfchw")))
#endif
void prefetch_to_write(const void* line) {
  __builtin_prefetch(line, 1);
}

}  // namespace

ArenaEngine::ArenaEngine(std::unique_ptr<Arena> arena) : arena_(std::move(arena)) {
  const auto n = static_cast<std::size_t>(size());
  outputs_.resize(n);
  inputs_.resize(n);
  peers_segments_.resize(n);
  cursors_.reserve(n);
}

ArenaEngine::~ArenaEngine() {
  // For those who wait for this rank.
  if (failure_note_.is_set() && arena_->fork_guard().is_here()) write_label(next_, 0);
}

void ArenaEngine::run(const Collective& collective, Deadline deadline) {
  const std::uint64_t sequence = post(collective, deadline);
  operation(sequence).may_differ = after_mismatch_ == AfterMismatch::go_on;
  wait(sequence, deadline);
  if (difference_) {
    const Error error = std::move(*difference_);
    difference_.reset();
    throw error;
  }
  failure_note_.forget();
}

void ArenaEngine::abort(std::string_view reason) noexcept {
  try {
    ErrorDetail detail;
    detail.rank = rank();
    detail.peer = rank();
    arena_->abort(
        Error(ErrorKind::aborted, fmt::format("{} aborted the group: {}", arena_->peer_name(rank()), reason), detail));
  } catch (...) {  // out of memory for the text: the group still ends, by this process's death
  }
}

std::uint64_t ArenaEngine::post(const Collective& collective, Deadline deadline, std::shared_ptr<const void> keeps) {
  arena_->fork_guard().check("a group");
  check_arguments(collective, rank(), size());
  refuse_if_aborted(collective);
  if (next_ - oldest_ == arena::kInFlight) wait(oldest_, deadline);
  const std::uint64_t sequence = next_;
  Operation& op = operation(sequence);
  op.keeps = std::move(keeps);
  op.signature = signature_of(collective, sequence, arena_->generation());
  op.phase = Phase::posted;
  op.small = is_small(collective, size());
  op.may_differ = false;
  write_slot(op, collective);
  if (collective.name != 0 || failure_note_.is_set()) write_label(sequence, collective.name);
  make_room(op, collective);  // from here on nothing fails
  ++next_;
  arena_->slot(rank(), sequence).posted.store(static_cast<std::uint32_t>(sequence), std::memory_order_release);
  arena_->ring();
  // What can wait is done while the news travels to the others' cores, and theirs to this one.
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) __builtin_prefetch(&arena_->slot(peer, sequence));
  }
  prefetch_to_write(&arena_->slot(rank(), next_));
  keep(op, collective);
  op.deadline = deadline;
  op.ticket = flight_log_.start(record_of(op.signature), collective.ticket);
  return sequence;
}

// A collective that the group's end forestalls is recorded too: a launcher looks there for who followed whom.
void ArenaEngine::refuse_if_aborted(const Collective& collective) const {
  try {
    arena_->check_abort();
  } catch (const Error& error) {
    const Signature signature = signature_of(collective, next_, arena_->generation());
    FlightTicket ticket = flight_log_.start(record_of(signature), collective.ticket);
    flight_log_.fail(ticket, error);
    throw;
  }
}

void ArenaEngine::make_room(Operation& op, const Collective& collective) {
  op.input.reserve(collective.input.size());
  op.output.reserve(collective.output.size());
  op.counts.reserve(collective.counts.size());
}

void ArenaEngine::keep(Operation& op, const Collective& collective) noexcept {
  op.collective = collective;
  op.input.assign(collective.input.begin(), collective.input.end());
  op.output.assign(collective.output.begin(), collective.output.end());
  op.counts.assign(collective.counts.begin(), collective.counts.end());
  op.collective.input = op.input;
  op.collective.counts = op.counts;
  op.collective.output = op.output;
}

void ArenaEngine::write_slot(Operation& op, const Collective& collective) {
  Slot& slot = arena_->slot(rank(), op.signature.sequence);
  std::memcpy(slot.signature, &op.signature, sizeof op.signature);
  slot.segments = 0;
  op.in_place = false;
  const auto mine = contribution(collective, rank());
  if (op.small) {
    const std::size_t bytes = mine.empty() ? 0 : contribution_bytes(collective, rank(), size());
    gather_bytes(mine, 0, payload_of(slot, bytes), bytes);
    return;
  }
  const bool reduces = reduces_in_place(collective.kind);
  if (!reduces || collective.output.size() > arena::kMaxSegmentRefs) return;
  auto* refs = reinterpret_cast<SegmentRef*>(slot.payload);
  for (std::size_t i = 0; i < collective.output.size(); ++i) {
    const auto offset = arena_->offset_of(collective.output[i].data, collective.output[i].bytes);
    if (!offset) return;
    refs[i] = {*offset, collective.output[i].bytes};
  }
  slot.segments = static_cast<std::uint32_t>(collective.output.size());
  op.in_place = true;
}

bool ArenaEngine::all_posted(const Operation& op) const {
  const auto wanted = static_cast<std::uint32_t>(op.signature.sequence);
  for (int peer = 0; peer < size(); ++peer) {
    // A peer that is already ahead has reused this slot only if all have finished with it.
    if (arena_->slot(peer, op.signature.sequence).posted.load(std::memory_order_acquire) != wanted) return false;
  }
  return true;
}

bool ArenaEngine::all_reduced(const Operation& op) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (!reached(arena_->control(peer).reduced, static_cast<std::uint32_t>(op.signature.sequence))) return false;
  }
  return true;
}

bool ArenaEngine::actionable(const Operation& op) const {
  return op.phase == Phase::posted ? all_posted(op) : op.phase == Phase::reduced && all_reduced(op);
}

bool ArenaEngine::advance(Operation& op) {
  if (!actionable(op)) return false;
  if (op.phase == Phase::reduced) {
    finish(op);
    return true;
  }
  if (!all_agree(op)) {
    find_difference(op);
  } else if (op.small) {
    finish_small(op);
    finish(op);
  } else if (in_place_everywhere(op)) {
    reduce_in_place(op);
    arena_->control(rank()).reduced.store(static_cast<std::uint32_t>(op.signature.sequence), std::memory_order_release);
    arena_->ring();
    op.phase = Phase::reduced;
  } else {
    StagedCall call{*arena_, op.collective, chunk_, writer_, inputs_, op.deadline, [&](const WaitFailure& stall) {
                      return explain(op, stall);
                    }};
    run_staged(call);
    finish(op);
  }
  return true;
}

bool ArenaEngine::all_agree(const Operation& op) {
  bool is_one_line = true;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Slot& slot = arena_->slot(peer, op.signature.sequence);
    if (std::memcmp(slot.signature, &op.signature, kAgreedBytes) != 0) return false;
    is_one_line &= std::memcmp(slot.signature + kAgreedBytes, &op.signature.line, sizeof op.signature.line) == 0;
  }
  if (is_one_line || call_sites_ == CallSites::free) return true;
  if (call_sites_ == CallSites::must_match) return false;
  for (int peer = 0; peer < size() && !has_warned_of_line_; ++peer) {
    const CallSide side = side_of(peer, op.signature.sequence);
    if (!is_other_line(side.signature, op.signature)) continue;
    has_warned_of_line_ = true;
    log_warning(describe_other_line(side.who, side.signature, op.signature));
  }
  return true;
}

// All ranks find the same: they have posted, and look at the same slots.
void ArenaEngine::find_difference(Operation& op) {
  std::vector<CallSide> sides;
  for (int peer = 0; peer < size(); ++peer) sides.push_back(side_of(peer, op.signature.sequence));
  const Error error = desync_error(rank(), sides);
  if (!op.may_differ || !can_go_on(sides)) {
    arena_->abort(error);
    throw error;
  }
  difference_ = error;
  flight_log_.fail(op.ticket, error);
  finish(op);
}

void ArenaEngine::write_label(std::uint64_t sequence, std::uint64_t name) const {
  arena::SlotLabel& label = arena_->slot(rank(), sequence).label;
  static_assert(sizeof(FlightName) == sizeof label.name);
  const FlightName text = process_recorder().find_name(name);
  std::memcpy(label.name, &text, sizeof text);
  label.failure[0] = '\0';
  if (failure_note_.is_set()) {
    const std::string failure = failure_note_.text().substr(0, sizeof label.failure - 1);
    std::memcpy(label.failure, failure.c_str(), failure.size() + 1);
  }
  label.sequence = static_cast<std::uint32_t>(sequence);
}

// What a rank says of a collective. The memory belongs to another process: nothing in it is believed.
CallSide ArenaEngine::side_of(int peer, std::uint64_t sequence) const {
  const Slot& slot = arena_->slot(peer, sequence);
  CallSide side{.rank = peer, .who = arena_->peer_name(peer), .signature = {}, .account = {}};
  std::memcpy(&side.signature, slot.signature, sizeof side.signature);
  arena::SlotLabel label;
  std::memcpy(&label, &slot.label, sizeof label);
  if (label.sequence != static_cast<std::uint32_t>(sequence)) return side;
  FlightName name;
  std::memcpy(static_cast<void*>(&name), label.name, sizeof name);
  FlightNames names;
  if (is_sound(name)) names.add(name);
  if (is_sound(name) && side.signature.name != 0) side.account.name = names.text_of(side.signature.name);
  side.account.failure = printable(std::span<const char>(label.failure));
  return side;
}

void ArenaEngine::finish_small(Operation& op) {
  const Collective& c = op.collective;
  const std::size_t part = c.count * element_size(c.dtype);
  const auto shown = [&](int peer) {
    return payload_of(arena_->slot(peer, op.signature.sequence), contribution_bytes(c, peer, size()));
  };
  switch (c.kind) {
    case OpKind::barrier: return;
    case OpKind::broadcast:
      if (rank() != c.root) scatter_bytes(shown(c.root), c.output, 0, part);
      return;
    case OpKind::all_gather:
    case OpKind::gather:
    case OpKind::scatter:
    case OpKind::all_to_all:
      for (int peer = 0; peer < size(); ++peer) {
        const Piece piece = piece_of(c, size(), peer, rank());
        scatter_bytes(shown(peer) + piece.input_offset, c.output, piece.output_offset, piece.bytes);
      }
      return;
    case OpKind::reduce:
      if (rank() != c.root) return;
      break;
    case OpKind::all_reduce:
    case OpKind::reduce_scatter: break;
  }
  const std::size_t skip = c.kind == OpKind::reduce_scatter ? static_cast<std::size_t>(rank()) * part : 0;
  const std::size_t element = element_size(c.dtype);
  SegmentCursor out(c.output);
  for (std::size_t done = 0; done < part;) {
    const std::size_t run = out.run();
    for (int peer = 0; peer < size(); ++peer) inputs_[static_cast<std::size_t>(peer)] = shown(peer) + skip + done;
    std::byte* target = out.data();
    reduce_all(c, {&target, 1}, inputs_, run / element);
    out.advance(run);
    done += run;
  }
}

bool ArenaEngine::in_place_everywhere(const Operation& op) const {
  if (!op.in_place) return false;
  for (int peer = 0; peer < size(); ++peer) {
    if (arena_->slot(peer, op.signature.sequence).segments == 0) return false;
  }
  return true;
}

void ArenaEngine::reduce_in_place(Operation& op) {
  const Collective& c = op.collective;
  const std::size_t element = element_size(c.dtype);
  const Slice slice = slice_of(c.count, size(), rank());
  cursors_.clear();
  for (int peer = 0; peer < size(); ++peer) {
    const Slot& slot = arena_->slot(peer, op.signature.sequence);
    auto& segments = peers_segments_[static_cast<std::size_t>(peer)];
    segments.clear();
    const auto* refs = reinterpret_cast<const SegmentRef*>(slot.payload);
    std::size_t total = 0;
    // Read once, then checked: the memory belongs to another process.
    const std::size_t count = std::min<std::size_t>(slot.segments, arena::kMaxSegmentRefs);
    for (std::size_t i = 0; i < count; ++i) {
      const SegmentRef ref = refs[i];
      if (ref.bytes > arena_->segment_bytes() || ref.offset > arena_->segment_bytes() - ref.bytes ||
          ref.bytes % element != 0 || ref.offset % element != 0) {
        throw damaged(op, peer, "memory outside its segment");
      }
      segments.push_back({arena_->segment(peer) + ref.offset, static_cast<std::size_t>(ref.bytes)});
      total += ref.bytes;
    }
    if (total != c.count * element) {
      throw damaged(op, peer, fmt::format("{} bytes where {} belong", total, c.count * element));
    }
    cursors_.emplace_back(segments, slice.begin * element);
  }
  for (std::size_t left = slice.count() * element; left != 0;) {
    std::size_t run = left;
    for (const SegmentCursor& cursor : cursors_) run = std::min(run, cursor.run());
    for (std::size_t i = 0; i < cursors_.size(); ++i) inputs_[i] = outputs_[i] = cursors_[i].data();
    const std::span<std::byte* const> all(outputs_);
    const bool to_root = c.kind == OpKind::reduce;
    reduce_all(c, to_root ? all.subspan(static_cast<std::size_t>(c.root), 1) : all, inputs_, run / element);
    for (SegmentCursor& cursor : cursors_) cursor.advance(run);
    left -= run;
  }
}

Error ArenaEngine::damaged(const Operation& op, int peer, std::string_view posted) const {
  return Error(ErrorKind::corrupt_data,
               fmt::format("{} posted {} in {}, as {} sees it: a process of this node wrote where it must not",
                           arena_->peer_name(peer), posted, describe(op.signature), arena_->peer_name(rank())),
               {.rank = rank(),
                .peer = peer,
                .operation = std::string(to_string(op.collective.kind)),
                .sequence = op.signature.sequence});
}

void ArenaEngine::finish(Operation& op) {
  op.phase = Phase::finished;
  op.keeps.reset();
  const TimePoint now = flight_log_.finish(op.ticket);
  arena::RankControl& mine = arena_->control(rank());
  mine.finished_ns.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  mine.finished.store(static_cast<std::uint32_t>(op.signature.sequence), std::memory_order_release);
}

void ArenaEngine::note_failure(const Error& error) {
  arena_->abort(error);
  for (std::uint64_t sequence = oldest_; sequence != next_; ++sequence) {
    flight_log_.fail(operation(sequence).ticket, error);
  }
}

void ArenaEngine::retire() {
  while (oldest_ != next_ && operation(oldest_).phase == Phase::finished) ++oldest_;
}

bool ArenaEngine::poll() {
  try {
    return progress();
  } catch (const Error& error) {
    note_failure(error);
    throw;
  } catch (const std::exception& error) {  // no memory: the others wait for this rank's share all the same
    const Error told(ErrorKind::internal, fmt::format("{}: {}", arena_->peer_name(rank()), error.what()),
                     {.rank = rank(), .peer = rank()});
    note_failure(told);
    throw told;
  }
}

bool ArenaEngine::progress() {
  // No look at the abort record here: what all ranks have posted can be finished, whatever became of them since.
  for (std::uint64_t sequence = oldest_; sequence != next_; ++sequence) {
    Operation& op = operation(sequence);
    advance(op);
    if (op.phase == Phase::posted) break;  // later ones are reduced later, on all ranks
  }
  retire();
  return oldest_ == next_;
}

void ArenaEngine::wait(std::uint64_t sequence, Deadline deadline) {
  for (;;) {
    poll();
    if (oldest_ > sequence) return;
    // The oldest must move in the end, but until then there may be a share of a later one to do.
    const auto any_actionable = [&] {
      for (std::uint64_t s = oldest_; s != next_; ++s) {
        const Operation& op = operation(s);
        if (actionable(op)) return true;
        if (op.phase == Phase::posted) return false;
      }
      return false;
    };
    Operation& op = operation(oldest_);
    // Two words to carry, which a std::function holds without memory of its own.
    const auto waiting_for = [this, &op](int peer) {
      const auto wanted = static_cast<std::uint32_t>(op.signature.sequence);
      return op.phase == Phase::posted ? arena_->slot(peer, wanted).posted.load(std::memory_order_acquire) != wanted
                                       : !reached(arena_->control(peer).reduced, wanted);
    };
    try {
      arena_->await(
          any_actionable, waiting_for, [&](const WaitFailure& stall) { return explain(op, stall); }, deadline);
    } catch (const Error& error) {
      note_failure(error);
      throw;
    }
  }
}

Error ArenaEngine::explain(const Operation& op, const WaitFailure& stall) const {
  ErrorDetail detail;
  detail.rank = rank();
  detail.peer = stall.peer;
  detail.operation = to_string(op.collective.kind);
  detail.sequence = op.signature.sequence;
  detail.elapsed_seconds = stall.elapsed_seconds;
  if (stall.cause == WaitFailure::Cause::left || stall.cause == WaitFailure::Cause::died) {
    const std::string& name = arena_->peer_name(stall.peer);
    const Departure how = stall.cause == WaitFailure::Cause::left ? Departure::left : Departure::died;
    std::string text = describe(departure_in(op.signature, name, how, arena_->peer_name(rank())));
    const std::string failure = side_of(stall.peer, op.signature.sequence).account.failure;
    if (!failure.empty()) text += fmt::format("; before that, {} failed in {}", name, failure);
    return Error(ErrorKind::peer_lost, text, detail);
  }
  std::string missing;
  for (const int peer : stall.missing) {
    missing += (missing.empty() ? "" : "; ") + describe_missing(arena_->peer_name(peer), "", health_of(peer));
  }
  if (!stall.missing.empty() && detail.peer < 0) detail.peer = stall.missing.front();
  if (stall.cause == WaitFailure::Cause::none) {
    return Error(ErrorKind::timeout,
                 fmt::format("{} has waited {:.0f} s for: {}", describe(op.signature), stall.elapsed_seconds, missing),
                 detail);
  }
  return Error(ErrorKind::timeout,
               fmt::format("{} timed out on {} after {:.1f} s; missing: {}", describe(op.signature),
                           arena_->peer_name(rank()), stall.elapsed_seconds, missing.empty() ? "nobody" : missing),
               detail);
}

PeerHealth ArenaEngine::health_of(int peer) const {
  std::uint32_t newest = 0;
  for (std::uint64_t s = 0; s < arena::kSlots; ++s) {
    newest = std::max(newest, arena_->slot(peer, s).posted.load(std::memory_order_acquire));
  }
  PeerHealth health{.state = std::string(arena_->peer_state(peer)), .place = "last seen in no collective yet"};
  if (newest == 0) return health;
  const CallSide last = side_of(peer, newest);
  health.place = fmt::format("last seen in {}", describe(last.signature, last.account.name));
  const arena::RankControl& theirs = arena_->control(peer);
  if (theirs.finished.load(std::memory_order_acquire) != newest) {
    health.inside = last.signature.sequence;
    health.place += ", still inside";
    return health;
  }
  const TimePoint left{Duration(theirs.finished_ns.load(std::memory_order_relaxed))};
  health.place += fmt::format(", left it {:.1f} s ago", seconds(steady_clock().now() - left));
  return health;
}

}  // namespace lockstep
