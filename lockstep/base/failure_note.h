// A FailureNote is the last thing that went wrong on this rank in a group's sight: a forward, a backward, a hook, an
// argument. Whoever throws notes it first, since what unwinds later can no longer see the text; the next collective
// that works wipes it off. Other ranks, who only see that this one does something else or leaves, quote it.
// Thread-safe; nothing here throws.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {

class FailureNote {
 public:
  // what: "backward of DistributedDataParallel"; text: as what() gives it, of which the first line is kept.
  void note(std::string_view what, std::string_view text) noexcept;
  void forget() noexcept {
    if (is_set()) wipe();
  }
  bool is_set() const noexcept { return is_set_.load(std::memory_order_relaxed); }
  // "backward of DistributedDataParallel: index out of range"; empty if there is nothing.
  std::string text() const;

 private:
  void wipe() noexcept;

  std::atomic<bool> is_set_{false};
  mutable std::mutex mutex_;
  std::string text_;  // protected by mutex_
};

// Notes arguments that were refused; other errors of a call every rank gets.
void note_refusal(FailureNote& note, const Error& error) noexcept;

// The text up to its first line break, and no longer than errors quote.
std::string_view first_line(std::string_view text);

}  // namespace lockstep
