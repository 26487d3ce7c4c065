#include "lockstep/comm/adapters/carrier_engine.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/base/tsc_clock.h"
#include "lockstep/comm/health/peer_failure.h"

namespace lockstep::internal {
namespace {

constexpr Duration kGrace = std::chrono::milliseconds(700);  // for the others to say why the group ended
constexpr Duration kLongestSleep = std::chrono::hours(1);
// Of the time until a report, after which somebody looks whether a call waits.
constexpr int kLooks = 4;

}  // namespace

CarrierEngine::CarrierEngine(const CarrierSite& site, MakeCarrier make, Reductions reductions, Deadline deadline)
    : EngineBase(site.rank, site.size, site.generation),
      site_(site),
      reductions_(reductions),
      posted_errors_(site.store, site.group, site.rank, site.size) {
  site_.check_alive = [this](Deadline limit) { check_alive(limit); };
  carrier_ = make(site_, deadline);
  rounds_ = std::make_unique<CarrierRounds>(*carrier_, rank(), size(), site_.buffer_bytes);
}

bool CarrierEngine::supports(OpKind kind, ReduceOp op, DType dtype) const {
  return internal::supports(kind, op, dtype, reductions_);
}

void CarrierEngine::check(const Collective& collective) const {
  check_arguments(collective, rank(), size());
  if (!supports(collective.kind, collective.reduce, collective.dtype)) {
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("{}: the {} backend does not support {} of {}; the native backend does", to_string(collective.kind),
                    name(), to_string(collective.reduce), to_string(collective.dtype)),
        {.rank = rank(), .operation = std::string(to_string(collective.kind))});
  }
  if (traits_of(collective.kind).reduces && collective.order == Order::tree && size() > 2) {
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("{}: the {} backend does not support Order::tree for more than 2 ranks; the native backend does",
                    to_string(collective.kind), name()),
        {.rank = rank(), .operation = std::string(to_string(collective.kind))});
  }
}

void CarrierEngine::await(Operation& op, Deadline deadline) {
  started_ = steady_clock().now();
  const Wait wait(*this, op.signature, started_);
  throw_if_aborted();
  begin_wait(op);
  compare_signatures(op.signature, deadline);
  meter_.moves(tsc_clock().now());
  rounds_->run(op.collective, deadline);
  finish(op);
}

void CarrierEngine::tell_abort(const Error& error) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = error;
  } catch (const std::exception&) {  // no memory for the text: the group still ends
  }
  post_later(error);
  carrier_->interrupt();
}

void CarrierEngine::set_failure_detector(FailureDetector* detector) {
  detector_ = detector;
  if (detector == nullptr || size() == 1) return;
  const SignalBlock block = SignalBlock::of_new_thread();
  reporter_ = std::jthread([this](std::stop_token stop) { report_waits(stop); });
}

CarrierEngine::Wait::Wait(CarrierEngine& engine, const Signature& signature, TimePoint since) : engine_(engine) {
  if (engine_.detector_ == nullptr) return;
  const std::lock_guard lock(engine_.wait_mutex_);
  engine_.waiting_.emplace(signature, since, WaitReports(engine_.first_report_));
}

CarrierEngine::Wait::~Wait() {
  if (engine_.detector_ == nullptr) return;
  const std::lock_guard lock(engine_.wait_mutex_);
  engine_.waiting_.reset();
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
  return text.empty() ? fmt::format("the library {}; all ranks have entered the collective", name()) : text;
}

void CarrierEngine::report_waits(std::stop_token stop) {
  std::unique_lock lock(wait_mutex_);
  while (!stop.stop_requested()) {
    Duration sleep = std::min<Duration>(first_report_ / kLooks, kLongestSleep);
    const TimePoint now = steady_clock().now();
    const Duration waited = waiting_ ? now - waiting_->since : Duration::zero();
    if (waiting_ && waiting_->reports.is_due(waited)) {
      log_warning(fmt::format("{} has waited {:.0f} s for: {}", describe(waiting_->signature), seconds(waited),
                              missing_in(waiting_->signature.sequence)));
    } else if (waiting_ && waited >= sleep) {
      ask_all();
      sleep = std::clamp<Duration>(waiting_->reports.next() - waited, std::chrono::milliseconds(1), sleep);
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
    const SignalBlock block = SignalBlock::of_new_thread();
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

void CarrierEngine::compare_signatures(const Signature& mine, Deadline deadline) {
  const auto n = static_cast<std::size_t>(size());
  std::vector<Signature> all(n);
  rounds_->all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), deadline);
  const bool is_line_free = call_sites_ != CallSites::must_match;
  const auto agrees = [&](const Signature& each) { return each == mine && (is_line_free || each.line == mine.line); };
  if (std::ranges::all_of(all, agrees)) return warn_of_other_line(all, mine);
  CallReport report{.failure = failure_note_->text()};
  if (mine.name != 0) report.name = noted_name(mine.name);
  Bytes told = encode(report), reports(n * kCallReportBytes, '\0');
  told.resize(kCallReportBytes);
  rounds_->all_gather(std::as_bytes(std::span(told)), std::as_writable_bytes(std::span(reports)), deadline);
  std::vector<CallSide> sides;
  for (std::size_t peer = 0; peer < n; ++peer) {
    const ByteView from = ByteView(reports).substr(peer * kCallReportBytes, kCallReportBytes);
    sides.push_back({static_cast<int>(peer), site_.members[peer], all[peer], decode_call_report(from)});
  }
  throw desync_error(rank(), std::move(sides));
}

void CarrierEngine::warn_of_other_line(const std::vector<Signature>& all, const Signature& mine) {
  for (std::size_t peer = 0; peer < all.size(); ++peer) {
    if (call_sites_ == CallSites::free || has_warned_of_line_ || !is_other_line(all[peer], mine)) continue;
    has_warned_of_line_ = true;
    log_warning(describe_other_line(site_.members[peer], all[peer], mine));
  }
}

Error CarrierEngine::fail(const Operation& op, const Error& error) {
  const Signature& signature = op.signature;
  const double elapsed_seconds = seconds(steady_clock().now() - started_);
  ErrorDetail detail{.rank = rank(),
                     .operation = std::string(to_string(signature.kind)),
                     .sequence = signature.sequence,
                     .elapsed_seconds = elapsed_seconds};
  if (error.kind() == ErrorKind::desync) {  // every rank finds its own two sides
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
  carrier_->interrupt();
  const PostedErrors::All posted = posted_errors_.read(grace);
  const Error why = with_health(root_cause(*seen, rank(), posted, site_.members), posted, signature);
  detail.peer = why.detail().peer;
  posted_errors_.post(why, Deadline::after(kGrace));  // for a rank that comes late
  return Error(why.kind(),
               fmt::format("{} failed on rank {} after {:.3f} s ({}): {}", describe(signature), rank(), elapsed_seconds,
                           to_string(why.kind()), why.what()),
               detail);
}

}  // namespace lockstep::internal
