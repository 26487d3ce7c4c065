// How long collectives wait and move, on all engines.
#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "lockstep/base/tsc_clock.h"
#include "lockstep/comm/collective/call_meter.h"
#include "tests/contract/engine/operands.h"
#include "tests/support/rank_threads.h"

namespace meter_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

constexpr int kRanks = 3;
constexpr int kLate = 2;
constexpr Duration kLateness = 2ms;

CallTimes times_of(const Engine& engine) { return engine.meter().at(tsc_clock().now()); }

// The last rank comes to a collective when the others have waited for so long.
void come_late(const Engines& engines) {
  for (int rank = 0; rank < kLate; ++rank) {
    while (!engines[static_cast<std::size_t>(rank)]->meter().is_waiting()) std::this_thread::yield();
  }
  const TimePoint until = tsc_clock().now() + kLateness;
  while (tsc_clock().now() < until) std::this_thread::yield();
}

}  // namespace

TEST_CASE("ranks wait until the last one has come, and move data from then on") {
  for (const Kind& kind : kKinds) {
    for (const std::size_t count : {1, 1'000'000}) {
      INFO(kind.name << ", count " << count);
      Engines engines = make_engines(kRanks, kind.over);
      run_ranks_or_throw(kRanks, [&](int rank) {
        Engine& engine = *engines[static_cast<std::size_t>(rank)];
        Operand operand(engine, kind.place, DType::f32, count, rank);
        const Segment segment = operand.segment();
        if (rank == kLate) come_late(engines);
        engine.run({.kind = OpKind::all_reduce, .dtype = DType::f32, .count = count, .output = {&segment, 1}}, soon());
      });
      for (int rank = 0; rank < kRanks; ++rank) {
        const Engine& engine = *engines[static_cast<std::size_t>(rank)];
        const CallTimes times = times_of(engine);
        if (rank != kLate) CHECK(times.waiting >= kLateness);
        if (count != 1) CHECK(times.moving > 0ns);
        const CallTimes later = engine.meter().at(tsc_clock().now() + 1h);
        CHECK(later.waiting == times.waiting);
        CHECK(later.moving == times.moving);
      }
    }
  }
}

TEST_CASE("who only looks in does not wait") {
  Engines engines = make_engines(2);
  run_ranks_or_throw(2, [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    float value = 1;
    const Segment segment{reinterpret_cast<std::byte*>(&value), sizeof value};
    if (rank == 1) {
      while (engines[0]->meter().at(tsc_clock().now()).waiting == 0ns) std::this_thread::yield();
    }
    const std::uint64_t number =
        engine.post({.kind = OpKind::all_reduce, .dtype = DType::f32, .count = 1, .output = {&segment, 1}}, soon());
    for (int look = 0; look < 1000; ++look) engine.poll();
    CHECK_FALSE(engine.meter().is_waiting());
    engine.wait(number, soon());
  });
  CHECK(times_of(*engines[0]).waiting > 0ns);
  CHECK(times_of(*engines[1]).waiting == 0ns);
}

TEST_CASE("a wait that fails is over") {
  for (const Kind& kind : kTransports) {
    Engines engines = make_engines(2, kind.over);
    run_ranks(2, [&](int rank) {
      if (rank == 0) engines[0]->run({}, Deadline::after(20ms));
    });
    CHECK_FALSE(engines[0]->meter().is_waiting());
    CHECK(times_of(*engines[0]).waiting >= 20ms);
  }
}

}  // namespace meter_test
