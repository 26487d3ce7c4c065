// A Request is the handle of one message that is being sent or received. Messenger -> Request.
// Cheap to copy; all copies refer to the same message, also after its Messenger is destroyed. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"

namespace lockstep {

inline constexpr int kAnySource = -1;  // for recv(): whichever rank's message comes first

enum class Direction : std::uint8_t { send, receive };

// How errors describe a message.
struct Envelope {
  Direction direction = Direction::send;
  int peer = kAnySource;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
};
// "send of 12 bytes with tag 7 to rank 1"
std::string describe(const Envelope& envelope);

// Shared by a Request and the thread that moves its bytes.
class RequestState {
 public:
  using Callback = std::function<void(std::exception_ptr)>;

  explicit RequestState(const Envelope& envelope) : envelope_(envelope) {}

  void wait(Deadline deadline);
  bool is_completed() const;
  int source() const;
  void on_done(Callback callback);
  // Called once; `error` is null on success. Runs the callbacks.
  void complete(int source, std::exception_ptr error);

 private:
  const Envelope envelope_;
  mutable std::mutex mutex_;
  std::condition_variable completed_;
  // State below is protected by mutex_.
  bool is_completed_ = false;
  int source_ = -1;
  std::exception_ptr error_;
  std::vector<Callback> callbacks_;
};

class Request {
 public:
  explicit Request(std::shared_ptr<RequestState> state) : state_(std::move(state)) {}

  // Returns once the message's memory may be used again: a send's bytes are on their way, a receive's have arrived.
  // Throws the Error with which the transfer failed, or Error{timeout} if the deadline passes first; the transfer then
  // continues.
  void wait(Deadline deadline = Deadline::never()) const { state_->wait(deadline); }
  bool is_completed() const { return state_->is_completed(); }
  // The rank that sent the message; -1 until the transfer is completed, and if it failed.
  int source() const { return state_->source(); }
  // Calls back once the transfer is completed, with null or its Error: at once if it already is, otherwise on the
  // messenger's thread, which must not be blocked and may not destroy the Messenger. Exceptions of the callback are
  // logged.
  void on_done(std::function<void(std::exception_ptr)> callback) const { state_->on_done(std::move(callback)); }

 private:
  std::shared_ptr<RequestState> state_;
};

}  // namespace lockstep
