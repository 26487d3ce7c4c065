#include "lockstep/comm/collective/link_engine.h"

#include <exception>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

const LinkTuning& check_tuning(const LinkTuning& tuning) {
  if (tuning.chunk_bytes == 0 || tuning.chunk_bytes % 64 != 0 || tuning.window_chunks == 0) {
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("chunk_bytes is {} and window_chunks is {}; chunk_bytes must be a positive multiple of 64, and "
                    "window_chunks at least 1",
                    tuning.chunk_bytes, tuning.window_chunks));
  }
  return tuning;
}

}  // namespace

LinkEngine::LinkEngine(std::unique_ptr<Mesh> mesh, std::uint64_t generation, const LinkTuning& tuning)
    : EngineBase(mesh->rank(), mesh->size(), generation),
      mesh_(std::move(mesh)),
      exchange_(*mesh_, Topology(mesh_->size()), check_tuning(tuning)) {
  exchange_.set_failure_note(failure_note_.get());
  exchange_.set_meter(&meter_);
}

LinkEngine::LinkEngine(std::unique_ptr<Mesh> mesh, std::uint64_t generation, Topology topology,
                       const LinkTuning& tuning)
    : EngineBase(mesh->rank(), mesh->size(), generation),
      mesh_(std::move(mesh)),
      exchange_(*mesh_, std::move(topology), check_tuning(tuning)) {
  exchange_.set_failure_note(failure_note_.get());
  exchange_.set_meter(&meter_);
}

LinkEngine::~LinkEngine() {
  if (!failure_note_->is_set()) return;
  try {
    exchange_.announce();
  } catch (const std::exception&) {  // no memory: the others see that it has left
  }
}

void LinkEngine::begin(Operation& op, const Collective& /*collective*/) { op.signature.check = check_of(op.signature); }

void LinkEngine::await(Operation& op, Deadline deadline) {
  started_ = steady_clock().now();
  begin_wait(op);
  exchange_.run(op.collective, op.signature, deadline);
  finish(op);
}

Error LinkEngine::fail(const Operation& op, const Error& error) {
  const Error told = blame(error);
  const std::string failure = is_plain_departure(told) ? exchange_.failure_of(told.detail().peer) : "";
  // The others would see no more than that this rank has left. A desync is settled with them already.
  if (told.kind() != ErrorKind::desync) mesh_->abort(Error(told.kind(), told.what() + failure, told.detail()));
  return explain(told, op.signature, failure);
}

Error LinkEngine::blame(const Error& error) const {
  if (error.kind() != ErrorKind::timeout || error.detail().peer >= 0) return error;  // else another rank's
  const Exchange::Missing missing = exchange_.missing();
  // Said to all ranks, also to the one that is missing.
  return Error(ErrorKind::timeout,
               fmt::format("{} timed out after {:.3f} s, missing: {}", mesh_->peer_name(rank()),
                           seconds(steady_clock().now() - started_), missing.text),
               {.rank = rank(), .peer = missing.first});
}

Error LinkEngine::explain(const Error& error, const Signature& signature, const std::string& failure) const {
  const Duration elapsed = steady_clock().now() - started_;
  ErrorDetail detail = error.detail();
  detail.rank = rank();
  detail.operation = std::string(to_string(signature.kind));
  detail.sequence = signature.sequence;
  detail.elapsed_seconds = seconds(elapsed);
  std::string text = error.what();
  if (error.kind() == ErrorKind::desync) return Error(error.kind(), text, detail);
  if (is_plain_departure(error)) {
    text = describe(departure_in(signature, mesh_->peer_name(error.detail().peer), Departure::left,
                                 mesh_->peer_name(rank()))) +
           failure;
  }
  return Error(error.kind(),
               fmt::format("{} failed on rank {} after {:.3f} s ({}): {}", describe(signature), rank(),
                           seconds(elapsed), to_string(error.kind()), text),
               detail);
}

}  // namespace lockstep::internal
