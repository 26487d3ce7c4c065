// A FailureNote is the last failure of this rank in a group: a forward, a backward, a hook, an argument. Code that
// throws notes the text first, since destructors that run later cannot see it; the next collective that succeeds clears
// it. The errors of other ranks, which only see this rank leave, quote it. Thread-safe; nothing here throws.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::internal {

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

  // Of the group that this one's is a part of. Before any other call.
  void set_whole(std::shared_ptr<FailureNote> whole) { whole_ = std::move(whole); }
  // Notes it for that group, and for those that it is a part of: a rank that fails in a part may leave them, too.
  void note_in_whole(std::string_view what, std::string_view text) const noexcept;

 private:
  void wipe() noexcept;

  std::atomic<bool> is_set_{false};
  mutable std::mutex mutex_;
  std::string text_;  // protected by mutex_
  std::shared_ptr<FailureNote> whole_;
};

// Notes refused arguments only: every rank gets the other errors of a call itself.
void note_refusal(FailureNote& note, const Error& error) noexcept;

// The text of an exception; by default of the one being handled. Empty if there is none.
std::string text_of_exception(const std::exception_ptr& thrown = std::current_exception());

// The text up to its first line break, and no longer than errors quote.
std::string_view first_line(std::string_view text);

}  // namespace lockstep::internal
