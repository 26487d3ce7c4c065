#include "lockstep/job/launch/line_splitter.h"

#include <algorithm>
#include <utility>

namespace lockstep::internal {

void LineSplitter::feed(std::string_view bytes, const OnLine& on_line) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const std::size_t room = kMaxLineBytes - partial_.size();
    const std::size_t taken = std::min({newline, room, bytes.size()});
    const bool complete = taken == newline || (taken == room && taken < bytes.size());
    if (complete && partial_.empty()) {
      on_line(bytes.substr(0, taken));
    } else {
      partial_.append(bytes.substr(0, taken));
      if (complete) on_line(std::exchange(partial_, {}));
    }
    bytes.remove_prefix(taken == newline ? taken + 1 : taken);
  }
}

void LineSplitter::finish(const OnLine& on_line) {
  if (!partial_.empty()) on_line(std::exchange(partial_, {}));
}

void LineSplitter::drop_overwritten() {
  const std::string_view visible = visible_text(partial_);
  partial_.erase(0, static_cast<std::size_t>(visible.data() - partial_.data()));
}

std::string_view visible_text(std::string_view line) {
  const std::size_t end = line.find_last_not_of('\r');
  if (end == std::string_view::npos) return line.substr(line.size());
  const std::size_t back = line.find_last_of('\r', end);
  const std::size_t begin = back == std::string_view::npos ? 0 : back + 1;
  return line.substr(begin, end + 1 - begin);
}

}  // namespace lockstep::internal
