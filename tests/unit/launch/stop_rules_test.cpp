#include "lockstep/job/launch/stop_rules.h"

#include <doctest/doctest.h>

#include <csignal>
#include <set>
#include <vector>

namespace stop_rules_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr Duration kForBlamed = std::chrono::seconds(7);

RankEnd ended(int rank, ExitStatus status, int blamed = -1) {
  RankEnd end;
  end.rank = rank;
  end.status = status;
  end.failure.text = describe(status);
  end.failure.blamed = blamed;
  return end;
}

Duration moment(const std::vector<RankEnd>& ends, const std::set<int>& running) {
  return moment_after_failure(
      ends, [&](int rank) { return running.contains(rank); }, kForBlamed);
}

}  // namespace

TEST_CASE("ranks that may have failed because of each other have a moment to say so") {
  CHECK(moment({ended(0, {.code = 1})}, {1, 2}) == std::chrono::milliseconds(250));
}

TEST_CASE("a rank that an error names has longer, while it runs") {
  CHECK(moment({ended(0, {.code = 1}, 2)}, {1, 2}) == kForBlamed);
  CHECK(moment({ended(0, {.code = 1}, 2)}, {1}) == std::chrono::milliseconds(250));
}

TEST_CASE("after a signal, which no other rank causes, there is nothing to wait for") {
  CHECK(moment({ended(1, {.code = 1}, 2), ended(0, {.signal = SIGSEGV})}, {2}) == Duration{});
}

TEST_CASE("ranks that were told to stop, or ended well, say nothing about the cause") {
  RankEnd told = ended(0, {.signal = SIGSEGV}, 2);
  told.told_to_stop = true;
  RankEnd well;
  well.rank = 1;
  well.failure.blamed = 2;
  CHECK(moment({told, well}, {2}) == std::chrono::milliseconds(250));
}

}  // namespace stop_rules_test
