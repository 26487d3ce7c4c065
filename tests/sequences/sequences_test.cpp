// DistributedDataParallel against a plain model of it, for random sequences of events.
// LOCKSTEP_TEST_CASES sets how many, LOCKSTEP_TEST_SEED the first one's seed; with a seed alone it is one case.
// LOCKSTEP_TEST_FAMILIES sets what is drawn: names as in draw.h with commas between, "all", or "all,-NAME".
// LOCKSTEP_TEST_SHRINK limits how often a failing case is tried anew (0: not at all), LOCKSTEP_TEST_FAILURES how many
// are shown; LOCKSTEP_TEST_SEED_FILE names a file that holds the seed under way, for crashes.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>

#include "tests/sequences/check.h"
#include "tests/sequences/draw.h"
#include "tests/sequences/shorten.h"

namespace sequences_test {

using namespace lockstep::sequences;

namespace {

long setting(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atol(text);
}

constexpr long kCases = 2000, kTries = 300, kFailures = 10;

}  // namespace

TEST_CASE("random sequences of events leave what a plain model says") {
  at::set_num_threads(1);
  const char* names = std::getenv("LOCKSTEP_TEST_FAMILIES");
  const std::uint64_t families = families_of(names == nullptr ? "all" : names);
  const long first = setting("LOCKSTEP_TEST_SEED", 1);
  const long cases = setting("LOCKSTEP_TEST_CASES", std::getenv("LOCKSTEP_TEST_SEED") == nullptr ? kCases : 1);
  const long tries = setting("LOCKSTEP_TEST_SHRINK", kTries);
  const long most_failures = setting("LOCKSTEP_TEST_FAILURES", kFailures);
  const char* seed_file = std::getenv("LOCKSTEP_TEST_SEED_FILE");
  Checker checker;
  const Check check = [&](const Sequence& one) { return checker.check(one); };
  int failures = 0;
  for (long seed = first; seed < first + cases && failures < most_failures; ++seed) {
    if (seed_file != nullptr) std::ofstream(seed_file) << seed << '\n';
    const Sequence one = draw(static_cast<std::uint64_t>(seed), families);
    const auto failure = check(one);
    if (!failure) continue;
    ++failures;
    const Shortened shortened = shorten(one, *failure, check, static_cast<int>(tries));
    const std::string text = "seed " + std::to_string(seed) + ", " + *failure + "\nafter " +
                             std::to_string(shortened.tries) + " tries to make it shorter: " + shortened.failure +
                             "\n" + to_text(shortened.sequence);
    FAIL_CHECK(text);
  }
  if (checker.unclear() != 0) MESSAGE("nothing can be said of " << checker.unclear() << " cases");
}

}  // namespace sequences_test
