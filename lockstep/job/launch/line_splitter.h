// LineSplitter cuts a stream of bytes into lines without losing a byte. A value type; no I/O.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep::internal {

class LineSplitter {
 public:
  // A line longer than this is passed on in pieces, each as a line of its own. So much is kept of each stream of a
  // rank.
  static constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20;
  using OnLine = std::function<void(std::string_view line)>;  // without its newline

  void feed(std::string_view bytes, const OnLine& on_line);
  // The stream has ended: the rest is a line.
  void finish(const OnLine& on_line);
  // The part of a line that has no newline yet.
  std::string_view partial() const { return partial_; }
  // Keeps, of the partial line, only what a terminal would still show.
  void drop_overwritten();

 private:
  std::string partial_;
};

// What a terminal shows of a line in the end: a carriage return moves the cursor back, and the text behind it
// overwrites the text before. "10%\r20%\r" -> "20%".
std::string_view visible_text(std::string_view line);

}  // namespace lockstep::internal
