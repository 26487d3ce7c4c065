// What a backward that throws has thrown. autograd engine -> FailedBackward -> whoever wants to know. torch's hooks see
// that a backward ends early, but not why; so torch gets an engine that looks at exceptions on their way out, as its
// Python layer has one. Where another program part has made it its own engine, nobody is told.
#pragma once

#include <functional>
#include <thread>

namespace lockstep {

class FailedBackward {
 public:
  // told: called in the thread whose backward throws, with the text. Must not throw.
  explicit FailedBackward(std::function<void(const char* text)> told);
  ~FailedBackward();
  FailedBackward(const FailedBackward&) = delete;
  FailedBackward& operator=(const FailedBackward&) = delete;

  // The calling thread is the one to which the next backwards belong. A backward of a thread that none has claimed is
  // everybody's.
  void claim_thread();

 private:
  friend void tell_failed_backward(const char* text) noexcept;
  const std::function<void(const char*)> told_;
  std::thread::id thread_;  // protected as the list of all is
};

}  // namespace lockstep
