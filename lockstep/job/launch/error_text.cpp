#include "lockstep/job/launch/error_text.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kTerminate = "terminate called after throwing an instance of ";
constexpr std::string_view kWhat = "  what():  ";
constexpr std::string_view kTraceback = "Traceback (most recent call last):";
constexpr std::string_view kRaisedFrom = "Exception raised from ";
constexpr std::string_view kTorchFrame = "frame #";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "#4 c10::Error::Error(...) from ??:0"
bool is_symbolized_frame(std::string_view line) {
  return line.size() > 2 && line[0] == '#' && is_digit(line[1]) && line.find(" from ") != std::string_view::npos &&
         is_digit(line.back());
}

// "[rank1]: " is what PyTorch writes in front of each line of an exception that nobody caught.
std::string_view without_rank(std::string_view line) {
  constexpr std::string_view kBegin = "[rank";
  constexpr std::string_view kEnd = "]: ";
  if (!line.starts_with(kBegin)) return line;
  const std::size_t end = line.find_first_not_of("0123456789", kBegin.size());
  const bool is_prefix = end != std::string_view::npos && end > kBegin.size() && line.substr(end).starts_with(kEnd);
  return is_prefix ? line.substr(end + kEnd.size()) : line;
}

}  // namespace

bool is_stack_frame(std::string_view line) {
  if (line.starts_with(kTorchFrame)) return line.size() > kTorchFrame.size() && is_digit(line[kTorchFrame.size()]);
  return line.starts_with(kRaisedFrom) || line == "C++ CapturedTraceback:" || is_symbolized_frame(line);
}

void ErrorText::feed(std::string_view line) {
  const std::string_view text = without_rank(line);
  const bool goes_on = is_stack_frame(text) || text.size() < line.size();  // an exception that nobody caught
  if (!goes_on && ++age_lines_ > kErrorLines) first_line_.clear();
  look_for_error(text);
  if (is_stack_frame(text)) return;
  last_lines_.emplace_back(line.substr(0, kLastLineBytes));
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
}

// The last error counts: an earlier one was handled, or caused it.
void ErrorText::look_for_error(std::string_view line) {
  if (line.starts_with(kTerminate)) {
    expected_ = Expected::what;
    take(line);  // of what is not a std::exception there is no more
  } else if (line.starts_with(kTraceback)) {
    expected_ = Expected::end_of_traceback;
  } else if (expected_ == Expected::what && line.starts_with(kWhat)) {
    take(line.substr(kWhat.size()));
  } else if (expected_ == Expected::end_of_traceback && !line.empty() && line.front() != ' ') {
    take(line);
  } else if (line.starts_with(kRaisedFrom) && !last_lines_.empty()) {
    // Its text ends above. That is the first line too, mostly; where terminate() or Python printed it, that is known.
    if (first_line_.empty() || age_lines_ > kLastLines) take(without_rank(last_lines_.back()));
  }
}

void ErrorText::take(std::string_view line) {
  if (!line.starts_with(kTerminate)) expected_ = Expected::nothing;
  first_line_ = line.substr(0, kLastLineBytes);
  age_lines_ = 0;
}

}  // namespace lockstep::internal
