#include "lockstep/collective/link_engine.h"

#include "lockstep/base/format.h"

namespace lockstep {
namespace {

const LinkTuning& check_tuning(const LinkTuning& tuning) {
  if (tuning.chunk_bytes == 0 || tuning.chunk_bytes % 64 != 0 || tuning.window_chunks == 0) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("chunks of {} bytes, {} to a window: a chunk must be a multiple of "
                            "64 bytes, and a window not empty",
                            tuning.chunk_bytes, tuning.window_chunks));
  }
  return tuning;
}

}  // namespace

LinkEngine::LinkEngine(std::unique_ptr<Mesh> mesh, std::uint64_t generation, const LinkTuning& tuning)
    : mesh_(std::move(mesh)),
      generation_(generation),
      exchange_(*mesh_, Topology(mesh_->size()), check_tuning(tuning)) {
  exchange_.set_failure_note(&failure_note_);
}

LinkEngine::LinkEngine(std::unique_ptr<Mesh> mesh, std::uint64_t generation, Topology topology,
                       const LinkTuning& tuning)
    : mesh_(std::move(mesh)), generation_(generation), exchange_(*mesh_, std::move(topology), check_tuning(tuning)) {
  exchange_.set_failure_note(&failure_note_);
}

void LinkEngine::run(const Collective& collective, Deadline deadline) {
  fork_guard_.check("a group");
  if (failure_) throw Error(*failure_);
  check_arguments(collective, rank(), size());
  Signature signature = signature_of(collective, ++sequence_, generation_);
  signature.check = check_of(signature);
  const TimePoint start = steady_clock().now();
  FlightTicket ticket = flight_log_.start(record_of(signature), collective.ticket);
  try {
    exchange_.run(collective, signature, deadline);
  } catch (const Error& error) {
    if (exchange_.is_aligned()) {
      const Error told = explain(error, signature, steady_clock().now() - start);
      flight_log_.fail(ticket, told);
      throw told;
    }
    failure_ = fail(error, signature, steady_clock().now() - start);
  } catch (const std::exception& error) {  // no memory: the streams are out of step all the same
    failure_ = fail(Error(ErrorKind::internal, error.what()), signature, steady_clock().now() - start);
  }
  finish(ticket, failure_);
}

void LinkEngine::abort(std::string_view reason) noexcept {
  if (failed_) return;  // the others know, and why
  try {
    mesh_->abort(Error(ErrorKind::aborted, fmt::format("rank {} ended the group: {}", rank(), reason),
                       {.rank = rank(), .peer = rank()}));
  } catch (const std::exception&) {  // no memory for the text: the group still ends, by this process's death
  }
}

Error LinkEngine::fail(const Error& error, const Signature& signature, Duration elapsed) {
  const Error told = blame(error);
  failed_ = true;
  // The others would see no more than that this rank has left. Ranks out of step all find their own two sides.
  if (told.kind() != ErrorKind::desync) mesh_->abort(told);
  return explain(told, signature, elapsed);
}

Error LinkEngine::blame(const Error& error) const {
  if (error.kind() != ErrorKind::timeout || error.detail().peer >= 0) return error;  // else another rank's
  const Exchange::Missing missing = exchange_.missing();
  return Error(ErrorKind::timeout, "missing: " + missing.text, {.rank = rank(), .peer = missing.first});
}

Error LinkEngine::explain(const Error& error, const Signature& signature, Duration elapsed) const {
  ErrorDetail detail = error.detail();
  detail.rank = rank();
  detail.operation = std::string(to_string(signature.kind));
  detail.sequence = signature.sequence;
  detail.elapsed_seconds = seconds(elapsed);
  std::string text = error.what();
  if (error.kind() == ErrorKind::desync) return Error(error.kind(), text, detail);
  if (is_plain_departure(error)) {
    text = describe(
        departure_in(signature, mesh_->peer_name(error.detail().peer), Departure::left, mesh_->peer_name(rank())));
  }
  return Error(error.kind(),
               fmt::format("{} failed on rank {} after {:.3f} s ({}): {}", describe(signature), rank(),
                           seconds(elapsed), to_string(error.kind()), text),
               detail);
}

}  // namespace lockstep
