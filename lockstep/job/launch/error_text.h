// An ErrorText extracts from a rank's standard error why it ended: the first line of its error, if it is recognised,
// and the last lines without stack frames. Lines in, a few lines out; no I/O.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

namespace lockstep::internal {

class ErrorText {
 public:
  static constexpr std::size_t kLastLines = 10;
  static constexpr std::size_t kLastLineBytes = 2048;
  static constexpr std::size_t kErrorLines = 20;

  void feed(std::string_view line);

  // Of an uncaught exception (C++, Python), or one that a torch library threw. Empty if there was none, or if more than
  // kErrorLines followed: then it was handled.
  const std::string& first_line() const { return first_line_; }
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  enum class Expected {
    nothing,
    what,             // terminate() has printed the exception's type; its text comes next
    end_of_traceback  // of Python's; the exception comes at its end
  };

  void look_for_error(std::string_view line);
  void take(std::string_view line);

  Expected expected_ = Expected::nothing;
  std::string first_line_;
  std::size_t age_lines_ = 0;  // lines since it was taken, without stack frames
  std::deque<std::string> last_lines_;
};

// "frame #3: at::native::add(...) + 0x7c (0x7f... in libtorch.so)", and what torch writes above these.
bool is_stack_frame(std::string_view line);

}  // namespace lockstep::internal
