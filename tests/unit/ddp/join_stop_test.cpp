// Ranks with different numbers of batches that are told to stop.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/base/stop_signal.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/train/ddp/uneven_inputs/join.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"

namespace join_stop_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

// Ranks here are threads, so all are told at once, and also those of the next test.
struct Forgotten {
  ~Forgotten() { forget_stop_request(); }
};

// Asks before each batch but the first, as a loader with stop_when does.
struct Asking {
  struct Iterator {
    int operator*() const { return 0; }
    Iterator& operator++() {
      world.stop_requested();
      ++i;
      return *this;
    }
    bool operator!=(int end) const { return i != end; }
    const World& world;
    int i;
  };
  Iterator begin() const { return {world, 0}; }
  int end() const { return 3; }
  const World& world;
};

}  // namespace

TEST_CASE("a join that is told to stop ends on all ranks after the same step, and leaves the batches that come then") {
  const Forgotten forgotten;
  for (const int told_in : {1, 2, 3, 4, 5}) {
    forget_stop_request();
    run_worlds_or_throw(3, [&](const World& world) {
      // Rank r has 2, 4, 6 batches.
      const std::vector<int> batches(static_cast<std::size_t>(2 * world.rank() + 2));
      int steps = 0;
      const auto report = join(world, batches,
                               [&](int) {
                                 ++steps;
                                 world.barrier();
                                 if (world.rank() == 1 && steps == told_in) request_stop();
                                 world.barrier();
                               },
                               {.stop_with = &world});
      CHECK(steps == told_in + 1);
      CHECK(static_cast<int>(report.steps) == std::min(steps, static_cast<int>(batches.size())));
      CHECK(static_cast<int>(report.steps + report.joined_steps) == steps);
      CHECK(world.stop_requested());
    });
  }
}

TEST_CASE("told in the last step, or told to some who do not stop, a join comes to its end") {
  const Forgotten forgotten;
  run_worlds_or_throw(2, [](const World& world) {
    const std::vector<int> batches(3);
    int steps = 0;
    const auto step = [&](int) {
      world.barrier();
      if (++steps == 3) request_stop();
    };
    CHECK(join(world, batches, step).steps == 3);
    CHECK(world.stop_requested());
    CHECK(join(world, batches, step).steps == 3);  // without stop_with nothing ends it
    CHECK(join(world, batches, step, {.stop_with = &world}).steps == 1);
  });
}

TEST_CASE("the loader of a join cannot ask, and a part of the ranks cannot stop alone") {
  const auto asked =
      run_worlds(2, [](const World& world) { join(world, Asking{world}, [&](int) { world.barrier(); }); });
  CHECK_ERROR(error_of([&] { std::rethrow_exception(asked[0]); }), ErrorKind::invalid_argument,
              "give the world to join()");
  run_worlds(2, [](const World& world) {
    const auto alone = world.split(world.rank());
    CHECK_ERROR(error_of([&] { join(*alone, std::vector<int>(2), [](int) {}, {.stop_with = &world}); }),
                ErrorKind::invalid_argument, "stop_with is a world of 2 ranks, but the group has only 1 of them");
  });
}

}  // namespace join_stop_test
