#include "lockstep/base/failure_note.h"

#include <algorithm>

namespace lockstep::internal {
namespace {

constexpr std::size_t kLongestQuote = 1000;

}  // namespace

std::string text_of_exception(const std::exception_ptr& thrown) {
  if (!thrown) return {};
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "the thrown object is not a std::exception";
  }
}

std::string_view first_line(std::string_view text) {
  while (!text.empty() && text.front() == '\n') text.remove_prefix(1);
  return text.substr(0, std::min(text.find('\n'), kLongestQuote));
}

void FailureNote::note(std::string_view what, std::string_view text) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    text_.assign(what).append(": ").append(first_line(text));
    is_set_.store(true, std::memory_order_relaxed);
  } catch (const std::exception&) {  // no memory for the text
  }
}

void FailureNote::note_in_whole(std::string_view what, std::string_view text) const noexcept {
  for (auto whole = whole_; whole != nullptr; whole = whole->whole_) {
    if (!whole->is_set()) whole->note(what, text);  // what came first is nearer to the cause
  }
}

void note_refusal(FailureNote& note, const Error& error) noexcept {
  if (error.kind() == ErrorKind::invalid_argument) note.note("the arguments of a call", error.what());
}

void FailureNote::wipe() noexcept {
  const std::lock_guard lock(mutex_);
  text_.clear();
  is_set_.store(false, std::memory_order_relaxed);
}

std::string FailureNote::text() const {
  const std::lock_guard lock(mutex_);
  return text_;
}

}  // namespace lockstep::internal
