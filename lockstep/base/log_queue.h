// A LogQueue writes lines to a descriptor and never blocks the caller. Lines that cannot be written now (a pager
// pauses, the disk is full) are queued up to a limit, and a thread writes them later; beyond the limit whole lines are
// dropped, and a line says how many. Thread-safe; lives as long as the process. In a forked child it writes what it can
// at once and drops the rest.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"

namespace lockstep::internal {

class LogQueue {
 public:
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 10;

  // The one for whatever this process says there: the log, and the launcher's own lines. While the program ends, a
  // reader that pauses gets a second to take the rest.
  static LogQueue& of_standard_error();

  // The descriptor is borrowed, and opened again for each line, since the program may redirect it.
  explicit LogQueue(int fd);
  ~LogQueue() = delete;
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  // A line with its newline.
  void write(std::string_view line) noexcept;
  // Waits until nothing is queued; false at the deadline.
  bool drain(Deadline deadline) noexcept;

 private:
  void enqueue(std::string_view line);
  void write_later();
  bool write_queued();

  const int fd_;
  const pid_t pid_;
  std::mutex mutex_;
  std::string queue_;
  std::size_t lost_ = 0;  // lines
  bool writing_later_ = false;
};

}  // namespace lockstep::internal
