// Several groups over the same TCP connections, whose collectives run at the same time: each gives what it gives alone,
// and none is touched when another one ends.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <optional>
#include <random>
#include <thread>

#include "tests/contract/engine/case_count.h"
#include "tests/contract/engine/cases.h"
#include "tests/support/expect_error.h"
#include "tests/support/shared_meshes.h"

namespace shared_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

constexpr int kRanks = 4;
constexpr int kGroups = 5;

// What becomes of a group half way through its collectives.
enum class End { none, abort, destroy };

struct Plan {
  std::vector<int> ranks;
  bool has_trees = false;
  End end = End::none;
  int who = 0;  // ends it
};

Plan random_plan(std::mt19937& random, bool has_ends) {
  Plan plan{.ranks = {0, 1, 2, 3}};
  std::ranges::shuffle(plan.ranks, random);
  plan.ranks.resize(2 + random() % 3);
  plan.has_trees = random() % 2 == 0;
  if (has_ends) plan.end = static_cast<End>(random() % 3);
  plan.who = static_cast<int>(random() % plan.ranks.size());
  return plan;
}

// As one rank of a group. Returns what ended it.
std::optional<Error> run_group(const SharedRanks& links, const Plan& plan, const std::string& name, int rank, int cases,
                               unsigned seed) {
  const int size = static_cast<int>(plan.ranks.size());
  LinkTuning tuning;
  tuning.tree_ranks = tuning.tree_lone_ranks = plan.has_trees ? 2 : size + 1;
  LinkEngine engine(open_group(links, name, plan.ranks, rank), 0, Topology(size), tuning);
  std::mt19937 shared(seed), own(seed * 10 + static_cast<unsigned>(rank));
  try {
    for (int i = 0; i < cases; ++i) {
      if (i == cases / 2 && rank == plan.who && plan.end == End::destroy) return std::nullopt;
      if (i == cases / 2 && rank == plan.who && plan.end == End::abort) engine.abort("half of it is enough");
      if (own() % 20 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 3000));
      run_case(engine, random_case(shared, size, i), own, Where::ordinary, Match::bits);
    }
    // The rest of a rank's calls may need nobody, and end before it hears of the abort.
    if (plan.end == End::abort) run_case(engine, {}, own, Where::ordinary, Match::bits);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

void run_groups(unsigned seed, int cases, bool has_ends) {
  CAPTURE(seed);
  std::mt19937 random(seed);
  const SharedRanks links = connect_ranks_of_test(kRanks, seed % 3 == 0 ? 3 : 1);
  std::vector<Plan> plans;
  for (int group = 0; group < kGroups; ++group) plans.push_back(random_plan(random, has_ends));
  std::vector<std::pair<const Plan*, std::future<std::optional<Error>>>> threads;
  for (int group = 0; group < kGroups; ++group) {
    const Plan& plan = plans[static_cast<std::size_t>(group)];
    const std::string name = "group " + std::to_string(group);
    for (int rank = 0; rank < static_cast<int>(plan.ranks.size()); ++rank) {
      threads.emplace_back(&plan, std::async(std::launch::async, [&links, &plan, name, rank, cases, own = seed + 100] {
        return run_group(links, plan, name, rank, cases, own);
      }));
    }
  }
  for (auto& [plan, thread] : threads) {
    const std::optional<Error> error = thread.get();
    if (plan->end == End::none) {
      if (error) FAIL_CHECK(error->what());
    } else if (plan->end == End::abort) {
      REQUIRE(error);
      CHECK_ERROR(*error, ErrorKind::aborted, "half of it is enough");
    } else if (error) {
      CHECK_ERROR(*error, ErrorKind::peer_lost, "rank " + std::to_string(plan->who));
    }
  }
}

}  // namespace

TEST_CASE("groups over the same connections run random collectives at the same time") {
  for (unsigned seed = 1; seed <= 4; ++seed) run_groups(seed, std::max(4, random_cases() / 50), false);
}

TEST_CASE("groups that are aborted and destroyed half way leave the others over their connections alone") {
  for (unsigned seed = 11; seed <= 20; ++seed) run_groups(seed, std::max(4, random_cases() / 200), true);
}

}  // namespace shared_test
