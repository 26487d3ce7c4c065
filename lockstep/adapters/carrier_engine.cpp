#include "lockstep/adapters/carrier_engine.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/collective/piece.h"
#include "lockstep/collective/segment_cursor.h"
#include "lockstep/health/peer_failure.h"
#include "lockstep/observe/process_recorder.h"

namespace lockstep {
namespace {

constexpr Duration kGrace = std::chrono::milliseconds(700);  // for the others to say why the group ended
constexpr Duration kLongestSleep = std::chrono::hours(1);
// Of the time until a report, after which somebody looks whether a call waits.
constexpr int kLooks = 4;

bool is_in_place(OpKind kind) {
  return kind == OpKind::all_reduce || kind == OpKind::reduce || kind == OpKind::broadcast;
}
bool reduces(OpKind kind) {
  return kind == OpKind::all_reduce || kind == OpKind::reduce || kind == OpKind::reduce_scatter;
}
bool takes_all(OpKind kind) { return kind == OpKind::reduce_scatter || kind == OpKind::scatter; }
bool gives_all(OpKind kind) { return kind == OpKind::all_gather || kind == OpKind::gather; }

// Elements of each rank that go into one round, of which a buffer holds so many parts.
std::size_t round_length(std::size_t buffer_bytes, std::size_t element, std::size_t parts) {
  return std::max<std::size_t>(1, buffer_bytes / (element * parts));
}

}  // namespace

CarrierEngine::CarrierEngine(const CarrierSite& site, MakeCarrier make, Reductions reductions, Deadline deadline)
    : site_(site), reductions_(reductions), posted_errors_(site.store, site.group, site.rank, site.size) {
  site_.check_alive = [this](Deadline limit) { check_alive(limit); };
  carrier_ = make(site_, deadline);
}

bool CarrierEngine::supports(OpKind kind, ReduceOp op, DType dtype) const {
  return lockstep::supports(kind, op, dtype) && (!reduces(kind) || reductions_(op, dtype));
}

void CarrierEngine::check(const Collective& collective) const {
  check_arguments(collective, rank(), size());
  if (!supports(collective.kind, collective.reduce, collective.dtype)) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: {} has no {} of {}; the backend native has", to_string(collective.kind), name(),
                            to_string(collective.reduce), to_string(collective.dtype)),
                {.rank = rank(), .operation = std::string(to_string(collective.kind))});
  }
  if (reduces(collective.kind) && collective.order == Order::tree && size() > 2) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: {} adds in an order of its own; the backend native adds as a tree",
                            to_string(collective.kind), name()),
                {.rank = rank(), .operation = std::string(to_string(collective.kind))});
  }
}

void CarrierEngine::run(const Collective& collective, Deadline deadline) {
  if (failure_) throw Error(*failure_);
  check(collective);
  const Signature signature = signature_of(collective, ++sequence_, site_.generation);
  const TimePoint start = steady_clock().now();
  FlightTicket ticket = flight_log_.start(record_of(signature), collective.ticket);
  begin_wait(signature, start);
  try {
    throw_if_aborted();
    compare_signatures(signature, deadline);
    carry_out(collective, deadline);
  } catch (const Error& error) {
    end_wait();
    if (error.kind() == ErrorKind::desync && is_aligned_ && after_mismatch_ == AfterMismatch::go_on) {
      flight_log_.fail(ticket, error);
      throw;
    }
    failure_ = fail(error, signature, steady_clock().now() - start);
  } catch (const std::exception& error) {  // no memory: the ranks are out of step all the same
    end_wait();
    failure_ = fail(Error(ErrorKind::internal, error.what()), signature, steady_clock().now() - start);
  }
  end_wait();
  finish(ticket, failure_);
}

void CarrierEngine::abort(std::string_view reason) noexcept {
  if (failed_) return;  // the others know, and why
  try {
    const Error error(ErrorKind::aborted, fmt::format("rank {} ended the group: {}", rank(), reason),
                      {.rank = rank(), .peer = rank()});
    {
      const std::lock_guard lock(mutex_);
      if (aborted_) return;
      aborted_ = error;
    }
    post_later(error);
  } catch (const std::exception&) {  // no memory for the text: the group still ends
  }
  carrier_->interrupt();
}

void CarrierEngine::set_failure_detector(FailureDetector* detector) {
  detector_ = detector;
  if (detector != nullptr && size() > 1) reporter_ = std::jthread([this](std::stop_token stop) { report_waits(stop); });
}

void CarrierEngine::begin_wait(const Signature& signature, TimePoint since) {
  if (detector_ == nullptr) return;
  const std::lock_guard lock(wait_mutex_);
  wait_.emplace(signature, since, WaitReports(first_report_));
}

void CarrierEngine::end_wait() {
  if (detector_ == nullptr) return;
  const std::lock_guard lock(wait_mutex_);
  wait_.reset();
}

void CarrierEngine::ask_all() noexcept {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) detector_->ask(peer);
  }
}

std::string CarrierEngine::missing_in(std::uint64_t sequence) const {
  std::string text;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const PeerHealth health = detector_->health(peer);
    if (health.inside >= sequence && health.departure == Departure::none) continue;
    text += (text.empty() ? "" : "; ") + describe_missing(site_.members[static_cast<std::size_t>(peer)], "", health);
  }
  return text.empty() ? fmt::format("the library {}; all ranks are in this call", name()) : text;
}

void CarrierEngine::report_waits(std::stop_token stop) {
  std::unique_lock lock(wait_mutex_);
  while (!stop.stop_requested()) {
    Duration sleep = std::min<Duration>(first_report_ / kLooks, kLongestSleep);
    const TimePoint now = steady_clock().now();
    if (wait_ && wait_->reports.is_due(now - wait_->since)) {
      log_warning(fmt::format("{} has waited {:.0f} s for: {}", describe(wait_->signature), seconds(now - wait_->since),
                              missing_in(wait_->signature.sequence)));
    } else if (wait_ && now - wait_->since >= sleep) {
      ask_all();
      sleep = std::clamp<Duration>(wait_->reports.next() - (now - wait_->since), std::chrono::milliseconds(1), sleep);
    }
    stopping_.wait_for(lock, stop, sleep, [] { return false; });
  }
}

Error CarrierEngine::with_health(const Error& why, const PostedErrors::All& posted, const Signature& signature) const {
  if (detector_ == nullptr) return why;
  ErrorDetail detail = why.detail();
  if (why.kind() == ErrorKind::timeout && detail.peer >= 0 && !posted[static_cast<std::size_t>(detail.peer)]) {
    const PeerHealth health = detector_->health(detail.peer);
    if (health.text().empty()) return why;
    const std::string& who = site_.members[static_cast<std::size_t>(detail.peer)];
    return Error(why.kind(), fmt::format("{}; {}", why.what(), describe_missing(who, "", health)), detail);
  }
  if (why.kind() != ErrorKind::peer_lost) return why;
  // Who went first; the others may have gone because of that.
  PeerHealth first;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || posted[static_cast<std::size_t>(peer)]) continue;
    const PeerHealth health = detector_->health(peer);
    if (health.departure == Departure::none) continue;
    if (first.departure != Departure::none && first.departed <= health.departed) continue;
    first = health;
    detail.peer = peer;
  }
  if (first.departure == Departure::none) return why;
  const std::string& who = site_.members[static_cast<std::size_t>(detail.peer)];
  const std::string& me = site_.members[static_cast<std::size_t>(rank())];
  return Error(why.kind(), describe(departure_in(signature, who, first.departure, me)), detail);
}

void CarrierEngine::post_later(const Error& error) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    posters_.emplace_back([this, error] { posted_errors_.post(error, Deadline::after(kGrace)); });
  } catch (const std::exception&) {  // no thread could be started: to the others this rank is missing
  }
}

void CarrierEngine::throw_if_aborted() {
  const std::lock_guard lock(mutex_);
  if (aborted_) throw Error(*aborted_);
}

void CarrierEngine::check_alive(Deadline deadline) {
  throw_if_aborted();
  if (posted_errors_.any(std::min(deadline, Deadline::after(kGrace)))) {
    throw Error(ErrorKind::peer_lost, "another rank has ended the group");
  }
}

void CarrierEngine::pack(std::span<const Segment> from, std::size_t offset, std::byte* to, std::size_t bytes) {
  for (SegmentCursor cursor(from, offset); bytes != 0;) {
    const std::size_t step = std::min(bytes, cursor.run());
    carrier_->copy(to, cursor.data(), step);
    cursor.advance(step);
    to += step;
    bytes -= step;
  }
}

void CarrierEngine::unpack(const std::byte* from, std::span<const Segment> to, std::size_t offset, std::size_t bytes) {
  for (SegmentCursor cursor(to, offset); bytes != 0;) {
    const std::size_t step = std::min(bytes, cursor.run());
    carrier_->copy(cursor.data(), from, step);
    cursor.advance(step);
    from += step;
    bytes -= step;
  }
}

void CarrierEngine::tell_all(std::span<const std::byte> mine, std::span<std::byte> all, Deadline deadline) {
  const CarrierBuffers buffers = carrier_->buffers(mine.size(), all.size());
  carrier_->copy(buffers.input, mine.data(), mine.size());
  carrier_->run({.kind = OpKind::all_gather, .count = mine.size(), .input = buffers.input, .output = buffers.output},
                deadline);
  carrier_->copy(all.data(), buffers.output, all.size());
}

void CarrierEngine::compare_signatures(const Signature& mine, Deadline deadline) {
  const auto n = static_cast<std::size_t>(size());
  std::vector<Signature> all(n);
  tell_all(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), deadline);
  const bool is_line_free = call_sites_ != CallSites::must_match;
  const auto agrees = [&](const Signature& each) { return each == mine && (is_line_free || each.line == mine.line); };
  if (std::ranges::all_of(all, agrees)) return warn_of_other_line(all, mine);
  is_aligned_ = false;
  CallReport account{.failure = failure_note_.text()};
  if (mine.name != 0) account.name = noted_name(mine.name);
  std::vector<std::byte> told(kCallReportBytes), accounts(n * kCallReportBytes);
  encode(account, std::span(told).first<kCallReportBytes>());
  tell_all(told, accounts, deadline);
  std::vector<CallSide> sides;
  for (std::size_t peer = 0; peer < n; ++peer) {
    const auto from = std::span<const std::byte>(accounts).subspan(peer * kCallReportBytes).first<kCallReportBytes>();
    sides.push_back({static_cast<int>(peer), site_.members[peer], all[peer], decode_call_report(from)});
  }
  is_aligned_ = can_go_on(sides);
  throw desync_error(rank(), std::move(sides));
}

void CarrierEngine::warn_of_other_line(const std::vector<Signature>& all, const Signature& mine) {
  for (std::size_t peer = 0; peer < all.size(); ++peer) {
    if (call_sites_ == CallSites::free || has_warned_of_line_ || !is_other_line(all[peer], mine)) continue;
    has_warned_of_line_ = true;
    log_warning(describe_other_line(site_.members[peer], all[peer], mine));
  }
}

void CarrierEngine::carry_out(const Collective& collective, Deadline deadline) {
  const std::size_t element = element_size(collective.dtype), n = static_cast<std::size_t>(size());
  switch (collective.kind) {
    case OpKind::barrier: return;  // comparing signatures was one
    case OpKind::all_to_all: {
      // All ranks know all counts, and so the number of rounds.
      const std::size_t most = *std::max_element(collective.counts.begin(), collective.counts.end());
      const std::size_t length = round_length(site_.buffer_bytes, element, n);
      for (std::size_t begin = 0; begin < most; begin += length) {
        run_all_to_all_round(collective, begin, std::min(length, most - begin), deadline);
      }
      return;
    }
    default: break;
  }
  const std::size_t length = round_length(site_.buffer_bytes, element, is_in_place(collective.kind) ? 1 : n);
  for (std::size_t begin = 0; begin < collective.count; begin += length) {
    run_round(collective, begin, std::min<std::size_t>(length, collective.count - begin), deadline);
  }
}

void CarrierEngine::run_round(const Collective& collective, std::size_t begin, std::size_t count, Deadline deadline) {
  const OpKind kind = collective.kind;
  const std::size_t element = element_size(collective.dtype), n = static_cast<std::size_t>(size());
  const std::size_t bytes = count * element, whole = collective.count * element, offset = begin * element;
  const bool is_root = rank() == collective.root;
  const bool gives = kind == OpKind::all_gather || (kind == OpKind::gather && is_root);
  const bool takes = kind == OpKind::reduce_scatter || (kind == OpKind::scatter && is_root);
  const CarrierBuffers buffers =
      carrier_->buffers(takes_all(kind) ? bytes * n : bytes, gives_all(kind) ? bytes * n : bytes);
  if (is_in_place(kind)) {
    pack(collective.output, offset, buffers.output, bytes);
  } else if (gives_all(kind)) {
    pack(collective.input, offset, buffers.input, bytes);
  } else if (takes) {
    for (std::size_t peer = 0; peer < n; ++peer) {
      pack(collective.input, peer * whole + offset, buffers.input + peer * bytes, bytes);
    }
  }
  carrier_->run({.kind = kind,
                 .reduce = reduces(kind) ? collective.reduce : ReduceOp::sum,
                 .dtype = collective.dtype,
                 .root = collective.root,
                 .count = count,
                 .input = buffers.input,
                 .output = buffers.output},
                deadline);
  if (gives) {
    for (std::size_t peer = 0; peer < n; ++peer) {
      unpack(buffers.output + peer * bytes, collective.output, peer * whole + offset, bytes);
    }
  } else if (!gives_all(kind) && (kind != OpKind::reduce || is_root)) {
    unpack(buffers.output, collective.output, offset, bytes);
  }
}

void CarrierEngine::run_all_to_all_round(const Collective& collective, std::size_t begin, std::size_t count,
                                         Deadline deadline) {
  const std::size_t element = element_size(collective.dtype);
  std::vector<Piece> to, from;
  std::vector<std::size_t> sent, received;
  std::size_t sent_bytes = 0, received_bytes = 0;
  // The part of a piece that belongs to this round.
  const auto part_of = [&](Piece piece, std::vector<Piece>& pieces, std::vector<std::size_t>& elements) {
    const std::size_t skip = std::min(piece.bytes, begin * element);
    piece.input_offset += skip;
    piece.output_offset += skip;
    piece.bytes = std::min(piece.bytes - skip, count * element);
    pieces.push_back(piece);
    elements.push_back(piece.bytes / element);
    return piece.bytes;
  };
  for (int peer = 0; peer < size(); ++peer) {
    sent_bytes += part_of(piece_of(collective, size(), rank(), peer), to, sent);
    received_bytes += part_of(piece_of(collective, size(), peer, rank()), from, received);
  }
  const CarrierBuffers buffers = carrier_->buffers(sent_bytes, received_bytes);
  std::byte* next = buffers.input;
  for (const Piece& piece : to) {
    pack(collective.input, piece.input_offset, next, piece.bytes);
    next += piece.bytes;
  }
  carrier_->run({.kind = collective.kind,
                 .dtype = collective.dtype,
                 .input = buffers.input,
                 .output = buffers.output,
                 .sent = sent,
                 .received = received},
                deadline);
  const std::byte* last = buffers.output;
  for (const Piece& piece : from) {
    unpack(last, collective.output, piece.output_offset, piece.bytes);
    last += piece.bytes;
  }
}

Error CarrierEngine::fail(const Error& error, const Signature& signature, Duration elapsed) {
  ErrorDetail detail{.rank = rank(),
                     .operation = std::string(to_string(signature.kind)),
                     .sequence = signature.sequence,
                     .elapsed_seconds = seconds(elapsed)};
  if (error.kind() == ErrorKind::desync) {  // every rank finds its own two sides
    failed_ = true;
    detail.peer = error.detail().peer;
    return Error(error.kind(), error.what(), detail);
  }
  std::optional<Error> seen = error;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) seen = aborted_;  // what the library said came of it
  }
  if (detector_ != nullptr) ask_all();  // they answer meanwhile
  // One after the other within the same time, should the store not answer.
  const Deadline grace = Deadline::after(kGrace);
  posted_errors_.post(*seen, grace);
  failed_ = true;
  carrier_->interrupt();
  const PostedErrors::All posted = posted_errors_.read(grace);
  const Error why = with_health(root_cause(*seen, rank(), posted, site_.members), posted, signature);
  detail.peer = why.detail().peer;
  posted_errors_.post(why, Deadline::after(kGrace));  // for a rank that comes late
  return Error(why.kind(),
               fmt::format("{} failed on rank {} after {:.3f} s ({}): {}", describe(signature), rank(),
                           seconds(elapsed), to_string(why.kind()), why.what()),
               detail);
}

}  // namespace lockstep
