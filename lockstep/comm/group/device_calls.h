// The DeviceCalls of a group are its collectives on tensors of a device that a Communicator moves: in the device's
// memory, on a stream of the communicator's own, without the host waiting.
//
//   caller         queues, once the call is on its way to be compared: the stream waits for the caller's current
//   stream,
//                  then come copies of what is not one piece of memory, the collective, and an event. Work::wait() lets
//                  the current stream wait for the event.
//   group's queue  compares the call with those of the other ranks, as an engine's collective without data, in the
//                  order in which all the group's calls were made
//   watcher        looks whether the event has come, the deadline has passed, a rank has died, or the library has
//   failed
//
// Any failure ends the group on all ranks, and aborts its communicators, so that nothing on the device waits for ever.
// What the calls that were under way leave in their tensors is not to be used then; every later call throws, and so
// does the end of a World if no call has.
//
// Reductions add up in an order of the library's choice, the same on all ranks. Collectives -> DeviceCalls ->
// Communicator, CallQueue. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/comm/adapters/communicator.h"
#include "lockstep/comm/group/call_queue.h"
#include "lockstep/comm/group/work.h"

namespace lockstep::internal {

struct DeviceRequest {
  OpKind kind = OpKind::barrier;
  at::TensorList outputs = {};
  at::TensorList inputs = {};
  ReduceOp reduce = ReduceOp::sum;
  Order order = Order::ranks;
  int root = 0;
  std::uint64_t name = 0;
  std::uint64_t number = 0;
  std::uint16_t line = 0;
  Deadline deadline = Deadline::never();
};

class DeviceCalls {
 public:
  // What becomes of tensors on devices: the host's engine has them all; or a communicator has those that it can do,
  // where there is one; or it is an error where the ranks cannot be connected.
  enum class Policy : std::uint8_t { never, automatic, required };

  // All are borrowed.
  DeviceCalls(Engine& engine, CallQueue& calls, const FlightLog& log, Policy policy);
  ~DeviceCalls();
  DeviceCalls(const DeviceCalls&) = delete;
  DeviceCalls& operator=(const DeviceCalls&) = delete;

  // Starts it; nothing if it is for the host's engine. All ranks decide alike, by what the signature of the call holds.
  // The first call for a device blocks until all ranks have met. Error{invalid_argument} before anything is sent; what
  // the group has failed with.
  std::optional<Work> start(const DeviceRequest& request);
  // Blocks until everything that was started is over. Throws what the group has failed with; Error{timeout} ends it.
  void wait(Deadline deadline);
  // The group ends, here at once. Waits for no other rank.
  void abort(std::string_view reason) noexcept;
  // As wait(), but throws only if no call has told the failure yet.
  void wait_untold();
  using Communicators = std::list<std::shared_ptr<Communicator>>;
  // To be called before the queue ends, after the last call. Waits for what is under way, unless the group has failed
  // or an exception is on its way: then aborts. The communicators are to end after the engine: to end they may wait for
  // other ranks, which only the engine tells that this rank has left.
  Communicators finish() noexcept;

 private:
  // The communicator of one device, if ranks can have one.
  struct Line {
    at::Device device;
    c10::Stream stream;
    std::uint8_t number;  // in the order of their first calls, which ranks compare
    bool has_met = false;
    std::shared_ptr<Communicator> communicator = {};
    // In signatures: calls of different lines differ, and so does the first one of each.
    Mover mover(bool is_new) const {
      return static_cast<Mover>(static_cast<std::uint8_t>(is_new ? Mover::new_device : Mover::device) + 2 * number);
    }
  };
  class Watched;

  const CommunicatorLibrary* library_for(const DeviceRequest& request, at::Device device) const;
  Line& line_of(at::Device device);
  void meet(Line& line, const Collective& real, Deadline deadline);
  std::unique_ptr<Communicator> connect(const Line& line, const std::string& id, Deadline deadline);
  void set(Call& call, const DeviceRequest& request, const Line& line) const;
  void compare(const std::shared_ptr<Watched>& watched, Call& call, Deadline deadline);
  void queue(Line& line, Call& call);
  // Ends the group with what the step throws: the others wait for what it cannot do.
  template <class Step>
  void or_fail(OpKind kind, Step&& step) {
    try {
      step();
    } catch (const Error& error) {
      fail(error);
      throw_if_failed();
    } catch (const std::exception& error) {
      fail(Error(ErrorKind::internal, std::string(to_string(kind)) + ": " + error.what()));
      throw_if_failed();
    }
  }
  void watch_over(const std::shared_ptr<Watched>& watched, Deadline deadline);
  void watch(const std::stop_token& stop);
  // Whether it is over.
  bool look_at(Watched& watched);
  void fail(const Error& error) noexcept;
  void throw_if_failed();
  std::string describe(const Watched& watched) const;

  Engine& engine_;
  CallQueue& calls_;
  const FlightLog& log_;
  const Policy policy_;
  const ForkGuard fork_guard_;

  std::mutex order_mutex_;  // of those who call: what is queued first is compared first
  std::list<Line> lines_;   // protected by order_mutex_

  mutable std::mutex mutex_;  // after order_mutex_
  std::condition_variable_any changed_;
  // State below is protected by mutex_.
  std::list<std::shared_ptr<Watched>> watched_;  // by age
  Communicators communicators_;
  std::optional<Error> failure_;
  std::jthread watcher_;  // made with the first call; last member: it must end first
};

}  // namespace lockstep::internal
