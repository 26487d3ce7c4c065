// SpawnReport is what a copy of a program tells the process that spawned it: that it came to its spawn() call, and with
// which exception its worker ended. A memory file that both have open, so that neither waits for the other.
// spawn() in the copy -> memory file -> spawn() in the parent.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "lockstep/base/unique_fd.h"

namespace lockstep {

class SpawnReport {
 public:
  struct Content {
    bool reached = false;  // the copy came to its spawn() call
    bool raised = false;
    bool lost_a_peer = false;  // the exception was an Error{peer_lost}
    std::string what;
  };

  // In the parent. Throws Error{internal}.
  static SpawnReport create();
  // In the copy: takes over the inherited descriptor.
  static SpawnReport inherited(int fd);

  int fd() const { return fd_.get(); }
  void write_reached();
  // What cannot be written is lost: the process is about to end. Keeps at most 64 KiB of the text.
  void write_raised(const std::exception_ptr& exception) noexcept;
  Content read() const;

 private:
  explicit SpawnReport(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace lockstep
