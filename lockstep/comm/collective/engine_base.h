// The EngineBase is what all engines have in common: the line of unfinished collectives, their order, flight records,
// errors, and what becomes of the engine after one. An engine adds how a collective begins, goes on, and waits.
// Thread rule: as Engine.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/comm/collective/engine.h"
#include "lockstep/comm/collective/signature.h"

namespace lockstep::internal {

class EngineBase : public Engine {
 public:
  // How many collectives may be unfinished at a time.
  static constexpr std::uint64_t kInFlight = 16;

  int rank() const final { return rank_; }
  int size() const final { return size_; }
  std::uint64_t post(const Collective& collective, Deadline deadline,
                     std::shared_ptr<const void> keeps = nullptr) final;
  bool poll() final;
  void wait(std::uint64_t number, Deadline deadline) final;
  void run(const Collective& collective, Deadline deadline) final;
  void abort(std::string_view reason) noexcept final;
  void end_with(const Error& error) noexcept final;
  void check_peers() final;

 protected:
  EngineBase(int rank, int size, std::uint64_t generation) : rank_(rank), size_(size), generation_(generation) {}

  //   posted     nothing is done yet, and nothing of later ones can be done
  //   reduced    this rank has done its share, others have not
  //   finished   the output is complete
  enum class Phase { posted, reduced, finished };
  // One unfinished collective of this rank. Its vectors keep their capacity from use to use.
  struct Operation {
    Collective collective;  // its spans point into the vectors below
    Signature signature;
    std::vector<Segment> input;
    std::vector<Segment> output;
    std::vector<std::uint64_t> counts;
    Phase phase = Phase::finished;
    FlightTicket ticket;
    bool is_run = false;      // its caller waits since it was posted
    bool ends_later = false;  // a device moves its data: who waits for that ends its flight record
    Deadline deadline = Deadline::never();
    std::shared_ptr<const void> keeps;  // see post()
  };

  // This rank waits in an operation, the oldest, until others enter it.
  void begin_wait(const Operation& operation);
  // Ends an operation. The time of it.
  TimePoint finish(Operation& operation);

  Operation& operation(std::uint64_t number) { return operations_[number % kInFlight]; }
  const Operation& operation(std::uint64_t number) const { return operations_[number % kInFlight]; }
  std::uint64_t oldest() const { return oldest_; }  // the first unfinished number
  std::uint64_t next() const { return next_; }      // the number of the next collective

  // Throws what ended the engine.
  virtual void check_failure() const {
    if (failure_) throw Error(*failure_);
  }

 private:
  // Error if it cannot be posted: its arguments are wrong, or the engine cannot do it.
  virtual void check(const Collective& collective) const { check_arguments(collective, rank_, size_); }
  // Lets the other ranks know of it. May throw only as long as they do not.
  virtual void begin(Operation& operation, const Collective& collective) = 0;
  // Does what can be done for it without waiting.
  virtual void advance(Operation& /*operation*/) {}
  // Blocks until advance() can do something for one of the unfinished ones, or finishes the operation, the oldest.
  virtual void await(Operation& operation, Deadline deadline) = 0;
  // The engine has failed: notifies the other ranks, and returns the error for callers.
  virtual Error fail(const Operation& operation, const Error& error) = 0;
  virtual void tell_abort(const Error& error) noexcept = 0;
  // Throws if a rank has died, as far as that is seen without waiting.
  virtual void look_at_peers() {}

  void refuse_if_failed(const Collective& collective) const;
  void advance_all();
  // An error of the step is the engine's end.
  template <class Step>
  void guarded(Step&& step);
  [[noreturn]] void end(const Error& error);

  const ForkGuard fork_guard_;
  const int rank_;
  const int size_;
  const std::uint64_t generation_;
  std::array<Operation, kInFlight> operations_;
  std::uint64_t oldest_ = 1;
  std::uint64_t next_ = 1;
  std::optional<Error> failure_;
  std::atomic<bool> has_failed_{false};  // failure_, for abort()
};

}  // namespace lockstep::internal
