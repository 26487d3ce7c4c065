#include "lockstep/comm/group/stop_agreement.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "lockstep/comm/group/world.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"

namespace stop_agreement_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

// Ranks here are threads, so all are told at once, and also those of the next test.
struct Forgotten {
  ~Forgotten() { forget_stop_request(); }
};

// How many of these many steps agree if each takes so long.
int agreements_of(AgreementPace& pace, TimePoint& now, int steps, Duration step) {
  int agreements = 0;
  for (int i = 0; i < steps; ++i) {
    now += step;
    if (!pace.is_due()) continue;
    pace.agreed(pace.proposal(now), now);
    ++agreements;
  }
  return agreements;
}

}  // namespace

TEST_CASE("long steps agree each time, short ones now and then") {
  TimePoint now{};
  AgreementPace pace;
  CHECK(agreements_of(pace, now, 100, 60ms) == 100);
  CHECK(agreements_of(pace, now, 100, 20ms) == 50);
  CHECK(agreements_of(pace, now, 800, 1ms) <= 800 / AgreementPace::kMost + 3);
  CHECK(agreements_of(pace, now, 800, 0ns) == 800 / AgreementPace::kMost);
  CHECK(agreements_of(pace, now, AgreementPace::kMost, 10s) >= 1);  // it finds out with the next agreement
  CHECK(agreements_of(pace, now, 10, 10s) == 10);
}

TEST_CASE("the first call agrees, and what it costs grows only with the steps") {
  TimePoint now{};
  AgreementPace pace;
  CHECK(pace.is_due());
  CHECK(pace.proposal(now) == 1);
  pace.agreed(1, now);
  CHECK(pace.is_due());
  CHECK(pace.proposal(now + 1us) == 2);  // at most doubled
  pace.agreed(2, now + 1us);
  CHECK_FALSE(pace.is_due());
  CHECK(pace.is_due());
  CHECK(pace.is_due());  // it failed: the next call tries again
}

TEST_CASE("all ranks stop after the same step") {
  const Forgotten forgotten;
  for (const char* transport : {"shared_memory", "tcp"}) {
    forget_stop_request();
    std::vector<int> steps(4);
    run_worlds_or_throw(4,
                        [&](const World& world) {
                          int& mine = steps[static_cast<std::size_t>(world.rank())];
                          while (!world.stop_requested()) {
                            if (++mine == 100 && world.rank() == 2) request_stop();
                          }
                          for (int i = 0; i < 10; ++i) CHECK(world.stop_requested());  // by itself
                        },
                        {.timeout = 30s, .transport = transport});
    CHECK(steps == std::vector<int>(4, steps[0]));
    CHECK(steps[0] >= 99);
    CHECK(steps[0] <= 100 + 2 * AgreementPace::kMost);
  }
}

TEST_CASE("a world made after the request knows of it at once, and a moved one too") {
  const Forgotten forgotten;
  request_stop();
  run_worlds_or_throw(2, [](const World& world) { CHECK(world.stop_requested()); });
  forget_stop_request();
  run_worlds_or_throw(2, [](const World& world) { CHECK_FALSE(world.stop_requested()); });
  World one = init_process_group({.rank = 0, .world_size = 1, .store = std::make_shared<MemoryStore>()});
  CHECK_FALSE(one.stop_requested());
  const World moved = std::move(one);
  CHECK_FALSE(moved.stop_requested());
  request_stop();
  CHECK(moved.stop_requested());
}

TEST_CASE("where ranks do not come equally often they cannot ask") {
  run_worlds_or_throw(2, [](const World& world) {
    {
      const UnevenCalls uneven;
      const UnevenCalls more;
      CHECK_ERROR(error_of([&] { world.stop_requested(); }), ErrorKind::invalid_argument,
                  "stop_requested() was called by the loader of a join()", "UnevenOptions::stop_with");
    }
    CHECK_FALSE(world.stop_requested());
  });
}

TEST_CASE("a rank that is gone is an error of the question") {
  const auto errors = run_worlds(2, [](const World& world) {
    if (world.rank() == 1) world.abort("it has had enough");
    for (;;) CHECK_FALSE(world.stop_requested());
  });
  CHECK_ERROR(error_of([&] { std::rethrow_exception(errors[0]); }), ErrorKind::aborted, "it has had enough");
}

}  // namespace stop_agreement_test
