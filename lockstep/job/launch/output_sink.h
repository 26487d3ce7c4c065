// An OutputSink passes text on to one of the launcher's own descriptors: whole lines, and on a terminal one status line
// below them. The descriptor cannot block the job for long. A slow reader slows the ranks down, and loses nothing. A
// reader that takes nothing for kPatience (a pager, Ctrl-S) loses whole lines from then on, and gets a line that says
// how many; so does a full disk, which is tried again every second. A reader that has gone loses everything. Not
// thread-safe; never blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/base/nonblocking_writer.h"

namespace lockstep::internal {

class OutputSink {
 public:
  static constexpr std::size_t kMaxQueuedBytes = std::size_t{1} << 20;
  static constexpr Duration kPatience = std::chrono::seconds(1);
  static constexpr Duration kRetry = std::chrono::seconds(1);

  // The descriptor is borrowed. `clock`: how long a reader takes nothing.
  explicit OutputSink(int fd, const Clock& clock = steady_clock());

  int fd() const { return fd_; }
  bool is_terminal() const { return is_terminal_; }
  // Whether text is queued that can be written once poll() says so.
  bool pending() const { return !queue_.empty() && state_ != State::failing && state_ != State::gone; }
  // Whether too much is queued for a reader that takes it: do not read more for this sink until then or until
  // wake_at().
  bool full() const { return state_ == State::flowing && queue_.size() - sent_ >= kMaxQueuedBytes; }
  // When tend() has something to do.
  Deadline wake_at() const;
  void tend();
  // Whether both lead to the same file: then one sink must serve both, or their lines may interleave.
  bool same_place(const OutputSink& other) const;

  void append(std::string_view text);
  // For the launcher's own lines: queued even while the ranks' output is being dropped, and behind a line that is not
  // complete on a new one.
  void append_always(std::string_view lines);
  // The text below the last line, replaced by the next call; "" for nothing. Only for a terminal.
  void set_status(std::string status);
  // Writes what the descriptor takes now.
  void write_some();

  // Why the descriptor cannot be written; once each time that it begins to fail, else empty.
  std::string take_trouble() { return std::exchange(trouble_, {}); }
  // Tries once more, and drops what is left.
  void give_up();
  // Dropped so far.
  std::uint64_t lost_lines() const { return lost_lines_; }

 private:
  enum class State {
    flowing,
    dropping,  // the reader takes nothing: new text is dropped
    failing,   // the disk is full: tried again
    gone,      // the reader has gone
  };

  void erase_status();
  void queue(std::string_view text);
  void drop(std::string_view text);
  void note_loss();
  void fail(int error);
  std::size_t next_write_bytes() const;

  int fd_;
  const Clock& clock_;
  NonblockingWriter writer_;
  bool is_terminal_ = false;
  bool is_file_ = false;
  State state_ = State::flowing;
  TimePoint taken_at_;  // when the reader last took something, or the queue began to fill
  TimePoint failed_at_;
  int error_ = 0;  // why it fails
  std::string trouble_;
  std::uint64_t lost_lines_ = 0;
  std::uint64_t lost_here_ = 0;  // behind the end of the queue
  bool in_lost_line_ = false;    // what was dropped last has no newline
  bool in_line_ = false;         // what was queued last has none
  std::string queue_;
  std::size_t sent_ = 0;
  std::string status_;
  bool status_drawn_ = false;
};

}  // namespace lockstep::internal
