// The CarrierEngine runs collectives over a Carrier. group -> CarrierEngine -> Carrier. It adds what such libraries
// lack: ranks compare signatures before data moves, errors have a kind and name ranks, and what the library cannot
// reduce is refused before anything is sent. Data passes through the carrier's buffers in rounds of bounded size.
//
// Such libraries do not report which rank is missing, or why a connection ended. The group's messenger does: it is
// asked for which rank a call waits, and whether a rank that is gone has left or died.
//
// Reductions need not add up in rank order: that is the library's affair, and results may differ in the last bit from
// those of the native engines, and from library to library. Thread rule: as Engine.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/adapters/carrier.h"
#include "lockstep/comm/adapters/carrier_rounds.h"
#include "lockstep/comm/collective/engine_base.h"
#include "lockstep/comm/health/posted_errors.h"
#include "lockstep/comm/health/wait_reports.h"

namespace lockstep::internal {

using MakeCarrier = std::unique_ptr<Carrier> (*)(const CarrierSite& site, Deadline deadline);

class CarrierEngine final : public EngineBase {
 public:
  // Blocks until the carriers of all ranks are connected. Throws what the carrier throws, or Error{timeout}.
  CarrierEngine(const CarrierSite& site, MakeCarrier make, Reductions reductions, Deadline deadline);

  std::string_view name() const override { return carrier_->name(); }
  bool supports(OpKind kind, ReduceOp op, DType dtype) const override;
  void set_failure_detector(FailureDetector* detector) override;
  void set_first_report(Duration first) override { first_report_ = first; }

 private:
  // A collective that is under way.
  struct Waiting {
    Signature signature;
    TimePoint since;
    WaitReports reports;
  };
  // There is one while this lives.
  class Wait {
   public:
    Wait(CarrierEngine& engine, const Signature& signature, TimePoint since);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    CarrierEngine& engine_;
  };

  // What throws before anything is sent.
  void check(const Collective& collective) const override;
  void begin(Operation& /*operation*/, const Collective& /*collective*/) override {}
  void await(Operation& operation, Deadline deadline) override;
  // Posts the error, reads those of the other ranks, then explains.
  Error fail(const Operation& operation, const Error& error) override;
  void tell_abort(const Error& error) noexcept override;

  // Logs for which rank a call waits, in a separate thread: the caller's is inside the library.
  void report_waits(std::stop_token stop);
  std::string missing_in(std::uint64_t sequence) const;
  void ask_all() noexcept;
  // What the detector adds to a root cause.
  Error with_health(const Error& why, const PostedErrors::All& posted, const Signature& signature) const;
  void throw_if_aborted();
  void check_alive(Deadline deadline);
  // Throws Error{desync} unless all ranks gave this signature.
  void compare_signatures(const Signature& mine, Deadline deadline);
  void warn_of_other_line(const std::vector<Signature>& all, const Signature& mine);
  // In the background, since the store may not answer.
  void post_later(const Error& error) noexcept;

  CarrierSite site_;
  const Reductions reductions_;
  PostedErrors posted_errors_;
  std::mutex mutex_;
  std::optional<Error> aborted_;  // protected by mutex_
  std::unique_ptr<Carrier> carrier_;
  std::unique_ptr<CarrierRounds> rounds_;
  TimePoint started_;  // of the collective that is under way
  bool has_warned_of_line_ = false;
  FailureDetector* detector_ = nullptr;
  Duration first_report_ = kFirstReport;
  std::mutex wait_mutex_;
  std::condition_variable_any stopping_;
  std::optional<Waiting> waiting_;     // protected by wait_mutex_; while there is one, there is a detector
  std::vector<std::jthread> posters_;  // protected by mutex_; last members: they end first
  std::jthread reporter_;
};

}  // namespace lockstep::internal
