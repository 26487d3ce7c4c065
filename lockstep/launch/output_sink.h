// OutputSink passes text on to one of the launcher's own descriptors: whole lines, and on a terminal one status line
// below them. It queues and writes only when poll says so, so that a reader who pauses (a pager, Ctrl-S) stops the
// ranks' output and not the launcher's supervision. Not thread-safe; never blocks.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

class OutputSink {
 public:
  explicit OutputSink(int fd);  // borrowed

  int fd() const { return fd_; }
  bool is_terminal() const { return is_terminal_; }
  bool pending() const { return !queue_.empty() && !broken_; }
  // Too much is queued: stop reading what is meant for here.
  bool full() const { return queue_.size() - sent_ >= kMaxQueuedBytes && !broken_; }
  // The reader has gone away; what is appended from now on is dropped.
  bool broken() const { return broken_; }
  // True if both lead to one place, and lines for one may cut through lines for the other unless one sink serves both.
  bool same_place(const OutputSink& other) const;

  void append(std::string_view text);
  // What to show below the last line, replaced by the next call; "" for nothing. Only for a terminal.
  void set_status(std::string status);
  // REQUIRES: poll said the descriptor can be written.
  void write_some();

 private:
  static constexpr std::size_t kMaxQueuedBytes = std::size_t{1} << 20;

  void erase_status();
  std::size_t next_write_bytes() const;

  int fd_;
  bool is_terminal_ = false;
  bool is_file_ = false;
  bool broken_ = false;
  std::string queue_;
  std::size_t sent_ = 0;
  std::string status_;
  bool status_drawn_ = false;
};

}  // namespace lockstep
