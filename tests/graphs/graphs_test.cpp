// DistributedDataParallel against the same module averaged by hand, for random modules and random schedules.
// LOCKSTEP_TEST_CASES sets how many, LOCKSTEP_TEST_SEED the first one's seed; with a seed alone it is one case.
// LOCKSTEP_TEST_SHRINK limits how often a failing case is tried anew (0: not at all), LOCKSTEP_TEST_FAILURES how many
// are shown; LOCKSTEP_TEST_SEED_FILE names a file that holds the seed under way, for crashes.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include "tests/graphs/check.h"
#include "tests/graphs/generate.h"
#include "tests/graphs/shrink.h"

namespace graphs_test {

using namespace lockstep::testing;

namespace {

long setting(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atol(text);
}

constexpr long kCases = 2000, kTries = 80;
constexpr long kFailures = 10;

std::optional<std::string> checked(const Case& one) {
  try {
    return check(one);
  } catch (const std::logic_error& error) {
    FAIL_CHECK("seed ", one.seed, ": the generator or the reference is wrong, ", std::string(error.what()), "\n",
               to_text(one));
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("random modules and schedules leave what averaging by hand leaves") {
  const long first = setting("LOCKSTEP_TEST_SEED", 1);
  const long cases = setting("LOCKSTEP_TEST_CASES", std::getenv("LOCKSTEP_TEST_SEED") == nullptr ? kCases : 1);
  const long tries = setting("LOCKSTEP_TEST_SHRINK", kTries);
  const char* seed_file = std::getenv("LOCKSTEP_TEST_SEED_FILE");
  const long most_failures = setting("LOCKSTEP_TEST_FAILURES", kFailures);
  int failures = 0;
  for (long seed = first; seed < first + cases && failures < most_failures; ++seed) {
    if (seed_file != nullptr) std::ofstream(seed_file) << seed << '\n';
    const Case one = generate(static_cast<std::uint64_t>(seed));
    const auto failure = checked(one);
    if (!failure) continue;
    ++failures;
    const Shrunk shrunk = shrink(one, *failure, check, static_cast<int>(tries));
    const std::string text = "seed " + std::to_string(seed) + ", " + *failure + "\nafter " +
                             std::to_string(shrunk.tries) + " tries to make it smaller: " + shrunk.failure + "\n" +
                             to_text(shrunk.one);
    FAIL_CHECK(text);
  }
}

}  // namespace graphs_test
