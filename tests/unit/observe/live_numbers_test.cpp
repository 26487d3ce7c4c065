#include "lockstep/base/observe/live_numbers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/observe/flight_recorder.h"
#include "lockstep/base/observe/report_value.h"
#include "tests/support/expect_error.h"

namespace live_numbers_test {

namespace {

using namespace lockstep;
using namespace lockstep::internal;

FlightRecorder private_recorder() { return FlightRecorder(FlightMemory::make_private({})); }

flight::LiveNumbers& live_of(const FlightRecorder& recorder) { return recorder.memory().header().live; }

FlightPhase phase_of(StepPhase phase, std::int64_t ns, std::int64_t waiting = 0, std::int64_t communicating = 0) {
  FlightPhase record;
  record.step = 1;
  record.begin_ns = 1000;
  record.end_ns = 1000 + ns;
  record.waiting_ns = waiting;
  record.communicating_ns = communicating;
  record.phase = phase;
  return record;
}

}  // namespace

TEST_CASE("times of phases add up to the whole") {
  FlightRecorder recorder = private_recorder();
  for (int i = 0; i < 2; ++i) {
    FlightPhase forward = phase_of(StepPhase::forward, 100);
    FlightPhase backward = phase_of(StepPhase::backward, 300, 50, 20);
    backward.hidden_ns = 7;
    recorder.add_phase(forward);
    recorder.add_phase(backward);
    recorder.count_step();
  }
  const RankNumbers numbers = live_of(recorder).read();
  CHECK(numbers.steps == 2);
  CHECK(numbers.phase_ns == std::array<std::uint64_t, kStepPhases>{0, 200, 460, 0, 0});
  CHECK(numbers.waiting_ns == 100);
  CHECK(numbers.communicating_ns == 40);
  CHECK(numbers.hidden_ns == 14);
}

TEST_CASE("samples count once they had a backward") {
  FlightRecorder recorder = private_recorder();
  const auto samples = [&] { return live_of(recorder).read().samples; };
  FlightPhase forward = phase_of(StepPhase::forward, 1);
  FlightPhase backward = phase_of(StepPhase::backward, 1);
  take_samples(64);  // of an evaluation
  take_samples(16);
  recorder.add_phase(forward);
  CHECK(samples() == 0);
  recorder.add_phase(backward);
  recorder.add_phase(backward);
  CHECK(samples() == 16);
  take_samples(8);
  FlightPhase compute = phase_of(StepPhase::compute, 1);
  recorder.add_phase(compute);
  CHECK(samples() == 24);
}

TEST_CASE("values have the names of the program, and room for 16") {
  FlightRecorder recorder = private_recorder();
  flight::LiveNumbers& live = live_of(recorder);
  for (std::size_t i = 0; i < kMostValues; ++i) CHECK(live.set("value" + std::to_string(i), 1.0));
  CHECK(live.set("value3", -2.5));
  CHECK_FALSE(live.set("one more", 1));
  const RankNumbers numbers = live.read();
  REQUIRE(numbers.values.size() == kMostValues);
  CHECK(numbers.values[3] == std::pair<std::string, double>("value3", -2.5));
}

TEST_CASE("threads that set one name take one place") {
  FlightRecorder recorder = private_recorder();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) {
        live_of(recorder).set("loss", n);
        live_of(recorder).set("accuracy", n);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(live_of(recorder).read().values.size() == 2);
}

TEST_CASE("what another process has written is limited") {
  FlightRecorder recorder = private_recorder();
  flight::LiveNumbers& live = live_of(recorder);
  live.steps.store(~0ULL);
  live.checkpoint_wall_ns.store(~0ULL);
  for (const char* name : {"loss", "", "a b", "loss", "\"}\n"}) {
    flight::LiveValue& place = live.values[static_cast<std::size_t>(
        std::ranges::count_if(live.values, [](const flight::LiveValue& value) { return value.state.load() != 0; }))];
    std::strncpy(place.name, name, sizeof place.name);
    place.state.store(2);
  }
  std::memset(live.values[7].name, 'x', sizeof live.values[7].name);  // without its end
  live.values[7].state.store(2);
  const RankNumbers numbers = live.read();
  CHECK(numbers.steps == std::uint64_t{1} << 56);
  CHECK(numbers.checkpoint_wall_ns == std::uint64_t{1} << 62);
  REQUIRE(numbers.values.size() == 1);
  CHECK(numbers.values[0].first == "loss");
}

TEST_CASE("numbers go on over attempts, values do not") {
  RankNumbers now{.steps = 3, .waiting_ns = 5, .checkpoint_wall_ns = 0, .values = {{"loss", 0.5}}};
  const RankNumbers before{
      .steps = 10, .waiting_ns = 2, .checkpoints = 1, .checkpoint_wall_ns = 99, .values = {{"old", 1}}};
  now.add_earlier(before);
  CHECK(now.steps == 13);
  CHECK(now.waiting_ns == 7);
  CHECK(now.checkpoints == 1);
  CHECK(now.checkpoint_wall_ns == 99);
  REQUIRE(now.values.size() == 1);
}

TEST_CASE("report_value() refuses what is no name, also where nobody watches") {
  report_value("loss", 1);
  report_value("train/loss.mean-1_A", 1);
  report_value(std::string(31, 'x'), 1);
  for (const std::string& name : {std::string(), std::string("a b"), std::string("\xc3\xa4"), std::string(32, 'x')}) {
    CHECK_ERROR(error_of([&] { report_value(name, 1); }), ErrorKind::invalid_argument, "is not a valid name",
                "1 to 31 letters");
  }
}

}  // namespace live_numbers_test
