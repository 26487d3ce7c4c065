// Thousands of random collectives, of every kind, type and reduction, of odd sizes, cut into odd pieces.
#include <doctest/doctest.h>

#include <random>

#include "tests/contract/engine/case_count.h"
#include "tests/contract/engine/cases.h"
#include "tests/support/rank_threads.h"

namespace random_test {

using namespace lockstep;
using namespace lockstep::testing;

namespace {

constexpr int kGroups = 20;

void run_cases(Over over, int ranks) {
  const int cases = random_cases() / 2 / kGroups;  // the other half are in mismatch_test.cpp
  Engines engines = make_engines(ranks, over);
  run_ranks_or_throw(ranks, [&](int rank) {
    std::mt19937 shared(static_cast<unsigned>(ranks));     // the same choices on all ranks
    std::mt19937 own(static_cast<unsigned>(rank) + 1000);  // where this rank's operands lie and are cut
    for (int i = 0; i < cases; ++i) {
      run_case(*engines[static_cast<std::size_t>(rank)], random_case(shared, ranks, i), own,
               over == Over::arena ? Where::arena : Where::ordinary, Match::bits);
    }
  });
}

}  // namespace

// feature: A-12
TEST_CASE("the table of what is supported is true of the native engines") {
  for (const Over over : {Over::arena, Over::links}) {
    Engines engines = make_engines(3, over);
    run_ranks_or_throw(3, [&](int rank) {
      const Where where = over == Over::arena ? Where::arena : Where::ordinary;
      CHECK(walk_table(*engines[static_cast<std::size_t>(rank)], where, Match::bits) > 0);
    });
  }
}

// feature: C-01, L-06
TEST_CASE("random collectives over the arena") {
  for (const int ranks : {1, 2, 3, 4, 7}) run_cases(Over::arena, ranks);
}

// feature: C-01, L-06
TEST_CASE("random collectives over links") {
  for (const int ranks : {1, 2, 3, 4, 7}) run_cases(Over::links, ranks);
}

TEST_CASE("random collectives of a part of a larger group") {
  for (const int ranks : {2, 3, 4}) run_cases(Over::part, ranks);
}

TEST_CASE("random collectives among nodes of two ranks") {
  for (const int ranks : {3, 4, 7}) run_cases(Over::nodes, ranks);
}

TEST_CASE("random collectives in trees") {
  for (const int ranks : {2, 3, 4, 7}) run_cases(Over::trees, ranks);
}

}  // namespace random_test
