// Plays a sequence on ranks that are threads of this process, and says what differs from what the Oracle expects.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tests/sequences/sequence.h"

namespace lockstep::sequences {

// Keeps groups of ranks from one case to the next; those of a case that fails are given up. One thread.
class Checker {
 public:
  Checker();
  ~Checker();

  // None: nothing differs. A rank that throws fails the case, and so does one that waits for 3 seconds.
  std::optional<std::string> check(const Sequence& sequence);
  // Cases of which the Oracle could say nothing.
  int unclear() const { return unclear_; }

 private:
  struct Groups;
  std::unique_ptr<Groups> groups_;
  int unclear_ = 0;
};

// The text of an error, without where torch threw it.
std::string text_of(const std::exception_ptr& error);

}  // namespace lockstep::sequences
