// Makes a failing sequence shorter: leaves out events and options as long as it still fails.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tests/sequences/sequence.h"

namespace lockstep::sequences {

struct Shortened {
  Sequence sequence;
  std::string failure;
  int tries = 0;
};

using Check = std::function<std::optional<std::string>(const Sequence&)>;

// check: what is wrong with a sequence; none if nothing is. Ends after so many calls of it.
Shortened shorten(Sequence sequence, std::string failure, const Check& check, int most_tries);

// Without the events that cannot happen.
Sequence without_idle_events(const Sequence& sequence);

}  // namespace lockstep::sequences
