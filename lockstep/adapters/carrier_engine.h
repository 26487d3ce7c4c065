// The CarrierEngine runs collectives over a Carrier. group -> CarrierEngine -> Carrier. It adds what such libraries
// lack: ranks compare signatures before data moves, errors have a kind and name ranks, and what the library cannot
// reduce is refused before anything is sent. Data passes through the carrier's buffers in rounds of bounded size.
//
// Such libraries do not say who is missing, or why a connection ended. The group's messenger knows more: it is asked
// for whom a call waits, and whether a rank that is gone has left or died.
//
// Reductions need not add up in rank order: that is the library's affair, and results may differ in the last bit from
// those of the native engines, and from library to library. Thread rule: as Engine.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/adapters/carrier.h"
#include "lockstep/base/error.h"
#include "lockstep/collective/engine.h"
#include "lockstep/health/posted_errors.h"
#include "lockstep/health/wait_reports.h"

namespace lockstep {

// What a library can reduce.
using Reductions = bool (*)(ReduceOp op, DType dtype);
using MakeCarrier = std::unique_ptr<Carrier> (*)(const CarrierSite& site, Deadline deadline);

class CarrierEngine final : public Engine {
 public:
  // Blocks until the carriers of all ranks have met. What the carrier throws; Error{timeout}.
  CarrierEngine(const CarrierSite& site, MakeCarrier make, Reductions reductions, Deadline deadline);

  int rank() const override { return site_.rank; }
  int size() const override { return site_.size; }
  std::string_view name() const override { return carrier_->name(); }
  bool reads_device_memory() const override { return carrier_->reads_device_memory(); }
  bool supports(OpKind kind, ReduceOp op, DType dtype) const override;
  void run(const Collective& collective, Deadline deadline) override;
  void abort(std::string_view reason) noexcept override;
  void set_failure_detector(FailureDetector* detector) override;
  void set_first_report(Duration first) override { first_report_ = first; }

 private:
  // A collective that is under way.
  struct Wait {
    Signature signature;
    TimePoint since;
    WaitReports reports;
  };
  void begin_wait(const Signature& signature, TimePoint since);
  void end_wait();
  // Says in the log for whom a call waits, in a thread of its own: the caller's is in the library.
  void report_waits(std::stop_token stop);
  std::string missing_in(std::uint64_t sequence) const;
  void ask_all() noexcept;
  // What the detector adds to a root cause.
  Error with_health(const Error& why, const PostedErrors::All& posted, const Signature& signature) const;
  // What throws before anything is sent.
  void check(const Collective& collective) const;
  void throw_if_aborted();
  void check_alive(Deadline deadline);
  // Throws Error{desync} unless all ranks came with this signature; is_aligned_ then says whether they can go on.
  void compare_signatures(const Signature& mine, Deadline deadline);
  void warn_of_other_line(const std::vector<Signature>& all, const Signature& mine);
  // The same bytes of all ranks, in rank order.
  void tell_all(std::span<const std::byte> mine, std::span<std::byte> all, Deadline deadline);
  void carry_out(const Collective& collective, Deadline deadline);
  // The parts [begin, begin + count) of every rank's elements.
  void run_round(const Collective& collective, std::size_t begin, std::size_t count, Deadline deadline);
  void run_all_to_all_round(const Collective& collective, std::size_t begin, std::size_t count, Deadline deadline);
  void pack(std::span<const Segment> from, std::size_t offset, std::byte* to, std::size_t bytes);
  void unpack(const std::byte* from, std::span<const Segment> to, std::size_t offset, std::size_t bytes);
  // In the background, since the store may not answer.
  void post_later(const Error& error) noexcept;
  // Posts the error, reads those of the other ranks, then explains.
  Error fail(const Error& error, const Signature& signature, Duration elapsed);

  CarrierSite site_;
  const Reductions reductions_;
  PostedErrors posted_errors_;
  std::mutex mutex_;
  std::optional<Error> aborted_;  // protected by mutex_
  std::unique_ptr<Carrier> carrier_;
  std::uint64_t sequence_ = 0;
  bool is_aligned_ = true;
  bool has_warned_of_line_ = false;
  std::optional<Error> failure_;
  std::atomic<bool> failed_{false};  // failure_, for abort()
  FailureDetector* detector_ = nullptr;
  Duration first_report_ = kFirstReport;
  std::mutex wait_mutex_;
  std::condition_variable_any stopping_;
  std::optional<Wait> wait_;           // protected by wait_mutex_; while there is one, there is a detector
  std::vector<std::jthread> posters_;  // protected by mutex_; last members: they end first
  std::jthread reporter_;
};

}  // namespace lockstep
