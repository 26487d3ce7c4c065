// Makes a failing case smaller: leaves out steps, operations, options, as long as it still fails.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tests/graphs/case.h"

namespace lockstep::testing {

struct Shrunk {
  Case one;
  std::string failure;
  int tries = 0;
};

// check: what is wrong with a case; none if nothing is. Ends after so many calls of it.
Shrunk shrink(Case one, std::string failure, const std::function<std::optional<std::string>(const Case&)>& check,
              int most_tries);

}  // namespace lockstep::testing
