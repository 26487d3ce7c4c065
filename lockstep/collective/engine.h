// An Engine runs collectives for one rank of one group over one kind of transport. group -> Engine -> arena or links.
// Calls come from one thread at a time (the group serialises them), except abort(), which any thread may call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/failure_note.h"
#include "lockstep/collective/collective.h"
#include "lockstep/health/failure_detector.h"
#include "lockstep/collective/mismatch.h"

namespace lockstep {

// What becomes of an engine whose ranks found that they came with different calls, before any data moved.
//   go_on        every rank gets Error{desync} from that call, and their next calls work
//   stay_failed  the engine stays failed, as after any other error
enum class AfterMismatch { go_on, stay_failed };

class Engine {
 public:
  virtual ~Engine() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view name() const = 0;  // "shared memory", "tcp", "in-process"

  // Whether segments may lie in a GPU's memory as well as in the host's.
  virtual bool reads_device_memory() const { return false; }

  // Blocks until this rank's part is done and its output is complete. All ranks call with equal signatures in the same
  // order. The result is bitwise the same on all ranks and from run to run: element i of a reduction is
  // ((x0[i] op x1[i]) op x2[i]) ... in rank order, float16 and bfloat16 accumulated in float32 and rounded once, and
  // avg divides that by n at the end; or else the collective's own Order. Errors: desync (every rank gets it),
  // peer_lost naming the rank, timeout naming the missing ranks, aborted. After any error but invalid_argument the
  // engine stays failed and rethrows it, but for a desync that AfterMismatch lets pass. In a child that was forked
  // since, every call is Error{invalid_argument}.
  virtual void run(const Collective& collective, Deadline deadline) = 0;

  // Whether run() can do it; asking sends nothing. What it cannot, run() refuses with Error{invalid_argument} before
  // anything is sent.
  virtual bool supports(OpKind kind, ReduceOp op, DType dtype) const { return lockstep::supports(kind, op, dtype); }

  // Ends every present and future call on all ranks with Error{aborted} that quotes `reason`. Never blocks.
  virtual void abort(std::string_view reason) noexcept = 0;

  // Where it records its collectives, and whom it asks about ranks that do not come (borrowed; null: nobody). Both
  // before the first run(). An engine whose ranks see each other needs no detector.
  void set_flight_log(FlightLog log) { flight_log_ = std::move(log); }
  const FlightLog& flight_log() const { return flight_log_; }
  virtual void set_failure_detector(FailureDetector* detector) { static_cast<void>(detector); }
  // Before the first run(), the same on all ranks.
  virtual void set_after_mismatch(AfterMismatch after) { after_mismatch_ = after; }

  virtual void set_call_sites(CallSites sites) { call_sites_ = sites; }
  // How long a call may wait until it says in the log for whom; see WaitReports. Before the first run().
  virtual void set_first_report(Duration first) { static_cast<void>(first); }

  // What failed on this rank outside of collectives; other ranks quote it. A run() that succeeds wipes it off.
  FailureNote& failure_note() { return failure_note_; }

 protected:
  // How a run() ends that leaves the engine whole, or failed.
  void finish(FlightTicket& ticket, const std::optional<Error>& failure) {
    if (failure) {
      flight_log_.fail(ticket, *failure);
      throw Error(*failure);
    }
    flight_log_.finish(ticket);
    failure_note_.forget();
  }

  FlightLog flight_log_;
  AfterMismatch after_mismatch_ = AfterMismatch::go_on;
  CallSites call_sites_ = CallSites::warn;
  FailureNote failure_note_;
};

}  // namespace lockstep
