#include "lockstep/job/elastic/separation.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

namespace separation_test {

using namespace lockstep::internal;

namespace {

const std::vector<Slot> kSlots{{0, 0, 0, 2}, {1, 1, 2, 2}, {2, 2, 4, 2}, {3, 3, 6, 2}};  // four hosts of two ranks

Outcome outcome_of(const std::vector<std::pair<int, int>>& losses, int own_failure = -1) {
  Outcome outcome;
  for (const auto& [rank, blamed] : losses) {
    RankEnd end;
    end.rank = rank;
    end.failure = {.text = "exited", .fault = Fault::consequence, .blamed = blamed};
    outcome.ranks.push_back(end);
  }
  if (own_failure >= 0) {
    RankEnd end;
    end.rank = own_failure;
    end.failure.text = "exited";
    outcome.ranks.push_back(end);
  }
  return outcome;
}

int leaver(const std::vector<std::pair<int, int>>& losses, int own_failure = -1) {
  const auto separation = find_separation(outcome_of(losses, own_failure), kSlots);
  return separation ? separation->leaver : -1;
}

}  // namespace

TEST_CASE("hosts whose ranks have lost each other's are separated, and the later one leaves") {
  CHECK(leaver({{2, 4}, {4, 2}, {0, 4}, {6, 2}}) == 2);
  CHECK(leaver({{3, 6}, {7, 2}}) == 3);
  const auto separation = find_separation(outcome_of({{3, 6}, {7, 2}}), kSlots);
  CHECK(separation->other == 1);
  CHECK(separation->leaver_rank == 7);
  CHECK(separation->other_rank == 3);
}

TEST_CASE("of several the one that most others do not reach leaves") {
  CHECK(leaver({{2, 4}, {4, 2}, {3, 6}, {6, 3}}) == 1);
}

TEST_CASE("the first host stays") { CHECK(leaver({{0, 6}, {6, 0}}) == 3); }

TEST_CASE("a loss that only one side tells of is none, nor is one within a host or beside a failure of its own") {
  CHECK(leaver({{2, 4}, {0, 4}}) == -1);
  CHECK(leaver({{2, 3}, {3, 2}}) == -1);
  CHECK(leaver({{2, 4}, {4, 2}}, 5) == -1);
  CHECK(leaver({{2, 99}, {4, -1}}) == -1);
  CHECK(leaver({}) == -1);
}

}  // namespace separation_test
