// An Engine runs collectives for one rank of one group over one kind of transport. group -> Engine -> arena or links.
//
// All engines work alike: post() starts a collective, poll() does what can be done for it without waiting, wait()
// blocks until it is finished. A blocking call is post() and wait(). Calls come from one thread at a time (the group
// serialises them), except abort(), which any thread may call.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/failure_note.h"
#include "lockstep/comm/collective/call_meter.h"
#include "lockstep/comm/collective/call_sites.h"
#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/collective/mismatch.h"
#include "lockstep/comm/health/failure_detector.h"

namespace lockstep::internal {

class ArenaHeap;

class Engine {
 public:
  virtual ~Engine() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view name() const = 0;  // "shared memory", "tcp", "in-process"

  // Memory that all ranks can read and write: collectives on it move the least bytes. Null if there is none.
  virtual std::shared_ptr<ArenaHeap> heap() const { return nullptr; }
  // Whether poll() advances collectives; else they make progress in wait() only.
  virtual bool advances_in_poll() const { return false; }

  // Starts a collective and returns its number. All ranks post with equal signatures in the same order. The result is
  // bitwise the same on all ranks and from run to run: element i of a reduction is ((x0[i] op x1[i]) op x2[i]) ... in
  // rank order, float16 and bfloat16 accumulated in float32 and rounded once, and avg divides that by n at the end; or
  // else the collective's own Order.
  //
  // Other ranks may write to the memory that it names until it is finished, even if nobody waits: `keeps` owns that
  // memory and is held until then. Blocks, until the deadline, only while the engine cannot hold more unfinished
  // collectives. Error{invalid_argument} before anything is sent; in a child that was forked since, always.
  virtual std::uint64_t post(const Collective& collective, Deadline deadline,
                             std::shared_ptr<const void> keeps = nullptr) = 0;
  // Returns true if no collective is unfinished.
  virtual bool poll() = 0;
  // Blocks until this collective and all before it are finished, and this rank's output is complete. Errors: desync
  // (every rank gets it), peer_lost naming the rank, timeout naming the missing ranks, aborted. After any of them the
  // engine remains failed, and every call rethrows it.
  virtual void wait(std::uint64_t number, Deadline deadline) = 0;
  // post() and wait().
  virtual void run(const Collective& collective, Deadline deadline) = 0;

  // Whether the engine supports it; asking sends nothing. post() refuses all others with Error{invalid_argument} before
  // anything is sent.
  virtual bool supports(OpKind kind, ReduceOp op, DType dtype) const { return lockstep::supports(kind, op, dtype); }

  // Ends every present and future call on all ranks with Error{aborted} that quotes `reason`. Never blocks.
  virtual void abort(std::string_view reason) noexcept = 0;

  // The same with an error that names what happened: kind, text and the rank that is to blame are the others', too.
  virtual void end_with(const Error& error) noexcept = 0;
  // Throws if the engine has failed, a rank has ended the group, or one has died since; those that have left are not
  // missed. Sends nothing, and never blocks. Called as post().
  virtual void check_peers() = 0;

  // All of these before the first post().
  // Where it records its collectives.
  void set_flight_log(FlightLog log) { flight_log_ = std::move(log); }
  const FlightLog& flight_log() const { return flight_log_; }
  // The detector to ask about missing ranks (borrowed; null: none). An engine whose ranks see each other needs none.
  virtual void set_failure_detector(FailureDetector* detector) { static_cast<void>(detector); }
  // The same on all ranks.
  virtual void set_call_sites(CallSites sites) { call_sites_ = sites; }
  // How long a call may wait until it logs the missing ranks; see WaitReports.
  virtual void set_first_report(Duration first) { static_cast<void>(first); }

  // How long its collectives take; any thread may ask.
  const CallMeter& meter() const { return meter_; }

  // What failed on this rank outside of collectives; other ranks quote it. A successful run() clears it.
  const std::shared_ptr<FailureNote>& failure_note() const { return failure_note_; }

 protected:
  FlightLog flight_log_;
  CallMeter meter_;
  CallSites call_sites_ = CallSites::warn;
  const std::shared_ptr<FailureNote> failure_note_ = std::make_shared<FailureNote>();
};

}  // namespace lockstep::internal
