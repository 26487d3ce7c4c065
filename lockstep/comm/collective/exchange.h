// An Exchange moves the bytes of one collective after the other over a Mesh. LinkEngine -> Exchange -> Links -> Mesh.
//
//   Links        carries this rank's signature, then data, to and from every peer, and compares signatures
//   Executor     moves the data: the Pipeline in flat collectives and those in two levels, the TreeExecutor in trees
//   WaitMonitor  looks after the ranks that are waited for, and names them
//   settle_desync  what is done once ranks are known to differ
//
// One thread at a time. Memory is kept from call to call.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/failure_note.h"
#include "lockstep/comm/collective/engine.h"
#include "lockstep/comm/collective/link_plan.h"
#include "lockstep/comm/collective/links.h"
#include "lockstep/comm/collective/pipeline.h"
#include "lockstep/comm/collective/tree_executor.h"
#include "lockstep/comm/collective/wait_monitor.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

class Exchange {
 public:
  Exchange(Mesh& mesh, Topology topology, const LinkTuning& tuning);

  // Runs one collective: begin(), then advance() and wait() until it is done, and settle() if one of them throws.
  // After an Error the streams are out of step, and there may be no further call.
  void run(const Collective& collective, const Signature& signature, Deadline deadline);

  // The steps of run(), of which a test runs those of several ranks in turns.
  // REQUIRES: check_arguments() has passed, and the collective before is done. `collective` stays until this one is.
  // Sends nothing.
  void begin(const Collective& collective, const Signature& signature, Deadline deadline);
  // Moves what can be moved at once, and never blocks. idle: nothing could be. Throws what the Mesh throws,
  // Error{desync} if a peer's call differs, and Error{timeout} if nothing moves after the deadline.
  enum class Progress : std::uint8_t { idle, moved, done };
  Progress advance();

  using Missing = WaitMonitor::Missing;
  Missing missing() const { return monitor_.missing(); }
  // Links'.
  std::string failure_of(int peer) const { return links_.failure_of(peer); }
  void announce() { links_.announce(); }

  void set_call_sites(CallSites sites) { links_.set_call_sites(sites); }
  void set_first_report(Duration first) { monitor_.set_first_report(first); }
  // What failed on this rank, for the others' errors. Borrowed.
  void set_failure_note(const FailureNote* note) { links_.set_failure_note(note); }
  // Notified when all ranks that this one needs have entered a collective. Borrowed.
  void set_meter(CallMeter* meter) { meter_ = meter; }
  // The detector to ask about missing ranks. Borrowed; null: none.
  void set_failure_detector(FailureDetector* detector) { monitor_.set_failure_detector(detector); }

 private:
  enum class Phase : std::uint8_t { idle, starting, moving };

  // Sleeps until advance() may have something to do. Throws what the Mesh throws.
  void wait();
  // The error to report after one of advance() or wait(), which may be the consequence of a difference. That is made
  // known to all ranks, for which it blocks; see settle_desync().
  Error settle(const Error& error);
  void look_for_difference();

  Mesh& mesh_;
  const Topology topology_;
  const LinkTuning tuning_;
  Links links_;
  Pipeline pipeline_;
  TreeExecutor tree_;
  WaitMonitor monitor_;
  CallMeter* meter_ = nullptr;

  Phase phase_ = Phase::idle;
  Route route_ = Route::flat;
  Executor* executor_ = nullptr;
  Deadline deadline_ = Deadline::never();
  std::vector<Mesh::Interest> interests_;
};

}  // namespace lockstep::internal
