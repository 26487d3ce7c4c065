#include "lockstep/job/launch/agent_marks.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostMarkBytes = 128;

std::string head_of(const std::string& secret) { return fmt::format("\x1e{} ", secret); }

std::vector<int> numbers_in(std::string_view text) {
  std::vector<int> numbers;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end; ++at) {
    int value = 0;
    const auto read = std::from_chars(at, end, value);
    if (read.ec != std::errc{} || (read.ptr != end && *read.ptr != ' ')) return {};
    numbers.push_back(value);
    at = read.ptr;
  }
  return numbers;
}

}  // namespace

std::string stage_mark(const std::string& secret, AgentStage stage) {
  return fmt::format("{}{}\n", head_of(secret), static_cast<int>(stage));
}

std::string end_mark(const std::string& secret, const AgentEnd& end) {
  return fmt::format("{}{} {} {}\n", head_of(secret), static_cast<int>(end.stage), end.status.code, end.status.signal);
}

MarkReader::MarkReader(const std::string& secret) : head_(head_of(secret)) {}

std::string MarkReader::take(std::string_view bytes) {
  unread_ += bytes;
  std::string text;
  std::size_t at = 0;
  while (at < unread_.size()) {
    const std::size_t start = std::min(unread_.find(head_.front(), at), unread_.size());
    text.append(unread_, at, start - at);
    at = start;
    const std::string_view here = std::string_view(unread_).substr(at);
    const std::string_view known = here.substr(0, head_.size());
    const bool may_be_mark = std::string_view(head_).starts_with(known) && !here.empty();
    const std::size_t end = may_be_mark ? here.find('\n') : std::string_view::npos;
    if (may_be_mark && end == std::string_view::npos && here.size() < kMostMarkBytes) break;
    if (end != std::string_view::npos && end > head_.size() &&
        read_mark(here.substr(head_.size(), end - head_.size()))) {
      at += end + 1;
    } else if (!here.empty()) {
      text += here.front();
      ++at;
    }
  }
  unread_.erase(0, at);
  return text;
}

// "1" or "1 0 9"
bool MarkReader::read_mark(std::string_view words) {
  const std::vector<int> numbers = numbers_in(words);
  if (numbers.size() != 1 && numbers.size() != 3) return false;
  if (numbers[0] < 0 || numbers[0] > static_cast<int>(AgentStage::joined)) return false;
  stage_ = static_cast<AgentStage>(numbers[0]);
  if (numbers.size() == 3) end_ = AgentEnd{.stage = stage_, .status = {.code = numbers[1], .signal = numbers[2]}};
  return true;
}

}  // namespace lockstep::internal
