#include "tests/fuzz/fuzz.h"

#include <doctest/doctest.h>

#include <set>

namespace fuzz_test {

using namespace lockstep;
using namespace lockstep::fuzz;

TEST_CASE("the same number gives the same inputs, and many of them differ") {
  const Subject subject{.seeds = {"a seed of some bytes", "another one"}, .words = {"word"}};
  std::set<Bytes> seen;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Random one(seed), again(seed);
    const Bytes input = mutated(subject, one);
    CHECK(input == mutated(subject, again));
    seen.insert(input);
  }
  CHECK(seen.size() > 900);
}

}  // namespace fuzz_test
