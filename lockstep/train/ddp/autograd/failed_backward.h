// Reports the exception of a backward. autograd engine -> FailedBackward -> failure note of the group. torch's hooks
// see that a backward ends early, but not why. So torch gets an engine that looks at exceptions on their way out, as
// its Python layer has one, as long as a FailedBackward lives. If another part of the program has installed its own
// engine, nothing is reported.
#pragma once

#include <functional>
#include <thread>

namespace lockstep::internal {

class FailedBackward {
 public:
  // report: called in the thread whose backward throws, with the text. Must not throw.
  explicit FailedBackward(std::function<void(const char* text)> report);
  ~FailedBackward();
  FailedBackward(const FailedBackward&) = delete;
  FailedBackward& operator=(const FailedBackward&) = delete;

  // The next backwards of the calling thread are reported to this object. Those of a thread that no object has claimed
  // are reported to all.
  void claim_thread();

 private:
  friend void report_failed_backward(const char* text) noexcept;
  const std::function<void(const char*)> report_;
  std::thread::id thread_;  // protected as the list of all is
};

}  // namespace lockstep::internal
