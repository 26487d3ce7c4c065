// A LogQueue writes lines to a descriptor without ever keeping the caller waiting. What cannot be written now (a pager
// that pauses, a full disk) waits, up to a limit, for a thread that writes it later; beyond the limit whole lines are
// dropped, and a line says how many. Thread-safe; lives as long as the process. In a forked child it writes what can be
// written at once.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"

namespace lockstep {

class LogQueue {
 public:
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 10;

  explicit LogQueue(
      int fd);  // borrowed, and looked at anew for each line: the program may put another file in its place
  ~LogQueue() = delete;
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  // A line with its newline.
  void write(std::string_view line) noexcept;
  // Waits until nothing is queued; false at the deadline.
  bool drain(Deadline deadline) noexcept;

 private:
  void keep(std::string_view line);
  void write_later();
  bool write_queued();

  const int fd_;
  const pid_t pid_;
  std::mutex mutex_;
  std::string queue_;
  std::size_t lost_ = 0;  // lines
  bool writing_later_ = false;
};

}  // namespace lockstep
