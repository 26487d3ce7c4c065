#include "lockstep/train/ddp/timing/step_timer.h"

#include <doctest/doctest.h>

#include <chrono>
#include <vector>

namespace step_timer_test {

namespace {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;
using Gradients = StepTimer::Gradients;

class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(now_); }
  Duration now_{1s};
};

// A rank whose time passes when the test says so.
struct Rank {
  ManualClock clock;
  CallTimes calls;
  std::vector<FlightPhase> phases;
  double communication = 0;
  StepTimer timer{{.clock = clock,
                   .calls = [this](TimePoint) { return calls; },
                   .record = [this](FlightPhase& phase) { phases.push_back(phase); }}};

  void pass(Duration time) { clock.now_ += time; }
  void wait(Duration time) {
    pass(time);
    calls.waiting += time;
  }
  void move(Duration time) {
    pass(time);
    calls.moving += time;
  }
  // Forward and backward, whose gradients are sent in part while it computes.
  void train(Duration waits = 4ms) {
    timer.forward_begins();
    pass(20ms);
    timer.backward_begins();
    pass(30ms);
    calls.moving += 7ms;  // another thread's, meanwhile
    {
      const StepTimer::Communication communicates(timer, communication);
      wait(waits);
      move(2ms);
      pass(1ms);  // copies
    }
    timer.backward_ends(Gradients::averaged);
  }
  void first_step() {
    train();
    timer.step_ends();
  }
};

doctest::Approx ms(double value) { return doctest::Approx(value / 1e3); }

}  // namespace

TEST_CASE("the time of a step is the sum of its phases, of waiting and of communicating") {
  Rank rank;
  rank.first_step();
  for (int step = 0; step < 2; ++step) {
    rank.pass(10ms);
    rank.train();
    rank.pass(5ms);
    rank.timer.step_ends();
  }
  const StepTimes mean = rank.timer.total().mean();
  CHECK(rank.timer.total().steps == 2);
  CHECK(mean.data == ms(10));
  CHECK(mean.forward == ms(20));
  CHECK(mean.backward == ms(30));
  CHECK(mean.optimizer == ms(5));
  CHECK(mean.waiting == ms(4));
  CHECK(mean.communicating == ms(3));
  CHECK(mean.hidden == ms(7));
  CHECK(mean.compute == 0);
  CHECK(mean.total() == ms(72));
  CHECK(rank.communication == ms(3 * 7));
}

TEST_CASE("the first step counts for nothing, but is recorded") {
  Rank rank;
  rank.first_step();
  CHECK(rank.timer.total().steps == 0);
  CHECK(rank.timer.total().total() == 0);
  REQUIRE(rank.phases.size() == 3);
  CHECK(rank.phases.front().step == 1);
}

TEST_CASE("where the end of the optimizer is not known, it is data of the next step") {
  Rank rank;
  rank.train();
  for (int step = 0; step < 3; ++step) {
    rank.pass(15ms);
    rank.train();
  }
  rank.timer.leave_out();
  CHECK(rank.timer.total().steps == 3);
  CHECK(rank.timer.total().mean().data == ms(15));
  CHECK(rank.timer.total().optimizer == 0);
}

TEST_CASE("gradients that add up on the rank belong to the step that their average ends") {
  Rank rank;
  rank.first_step();
  for (int part = 0; part < 2; ++part) {
    rank.pass(1ms);
    rank.timer.forward_begins();
    rank.pass(2ms);
    rank.timer.backward_begins();
    rank.pass(3ms);
    rank.timer.backward_ends(part == 0 ? Gradients::local : Gradients::averaged);
  }
  rank.timer.step_ends();
  const StepTimes& total = rank.timer.total();
  CHECK(total.steps == 1);
  CHECK(total.data == ms(2));
  CHECK(total.forward == ms(4));
  CHECK(total.backward == ms(6));
}

TEST_CASE("collectives of the program between the phases are taken out of them") {
  Rank rank;
  rank.first_step();
  rank.wait(8ms);  // for a mean of losses
  rank.move(1ms);
  rank.pass(6ms);
  rank.train();
  rank.timer.step_ends();
  CHECK(rank.timer.total().data == ms(6));
  CHECK(rank.timer.total().waiting == ms(12));
  CHECK(rank.timer.total().communicating == ms(4));
}

TEST_CASE("what is done besides belongs to no step") {
  Rank rank;
  rank.first_step();
  rank.pass(500ms);  // an evaluation
  rank.timer.leave_out();
  rank.pass(3ms);
  rank.train();
  rank.timer.step_ends();
  CHECK(rank.timer.total().data == ms(3));
}

TEST_CASE("what is done besides, between backwards that add up, belongs to no step") {
  Rank rank;
  rank.first_step();
  for (const Gradients gradients : {Gradients::local, Gradients::averaged}) {
    rank.pass(500ms);  // an evaluation
    rank.timer.leave_out();
    rank.pass(3ms);
    rank.timer.forward_begins();
    rank.pass(2ms);
    rank.timer.backward_begins();
    rank.timer.backward_ends(gradients);
  }
  rank.timer.step_ends();
  CHECK(rank.timer.total().data == ms(6));
  CHECK(rank.timer.total().forward == ms(4));
}

TEST_CASE("a backward that fails leaves nothing behind") {
  Rank rank;
  rank.first_step();
  rank.timer.forward_begins();
  rank.pass(20ms);
  rank.timer.backward_begins();
  rank.pass(900ms);
  rank.train();  // without the end of the one before
  rank.timer.step_ends();
  CHECK(rank.timer.total().steps == 1);
  CHECK(rank.timer.total().total() == ms(57));
}

TEST_CASE("where forward and backward are not seen, a step has data and compute") {
  Rank rank;
  for (int step = 0; step < 3; ++step) {
    rank.timer.compute_begins();
    rank.pass(20ms);
    rank.timer.compute_begins();  // another shard, or a part of the batch
    rank.wait(5ms);
    rank.timer.compute_ends();
    rank.pass(1ms);
    rank.timer.step_ends();
    rank.pass(2ms);
  }
  CHECK(rank.timer.total().steps == 2);
  CHECK(rank.timer.total().mean().compute == ms(20));
  CHECK(rank.timer.total().mean().waiting == ms(5));
  CHECK(rank.timer.total().mean().optimizer == ms(1));
  CHECK(rank.timer.total().mean().data == ms(2));
  // Without an end of its own, until the step's.
  rank.timer.compute_begins();
  rank.pass(7ms);
  rank.timer.step_ends();
  CHECK(rank.timer.total().compute == ms(47));
}

TEST_CASE("a window has the waits of its steps, the newest if there are too many") {
  Rank rank;
  rank.first_step();
  for (int step = 0; step < 3; ++step) {
    rank.train(std::chrono::milliseconds(step));
    rank.timer.step_ends();
  }
  const StepWindow window = rank.timer.take_window();
  CHECK(window.times.steps == 3);
  REQUIRE(window.waits.size() == 3);
  CHECK(window.waits[2] == ms(2));
  CHECK(rank.timer.take_window().waits.empty());
  constexpr int kMany = static_cast<int>(StepWindow::kMostWaits) + 5;
  for (int step = 0; step < kMany; ++step) {
    rank.train(std::chrono::milliseconds(step));
    rank.timer.step_ends();
  }
  const StepWindow many = rank.timer.take_window();
  CHECK(many.times.steps == kMany);
  REQUIRE(many.waits.size() == StepWindow::kMostWaits);
  CHECK(many.waits.front() == ms(5));
  CHECK(many.waits.back() == ms(kMany - 1));
  CHECK(rank.timer.total().steps == 3 + kMany);
}

TEST_CASE("phases follow one another in the recording, and say how much of them was no computing") {
  Rank rank;
  rank.first_step();
  rank.pass(10ms);
  rank.train();
  rank.pass(5ms);
  rank.timer.step_ends();
  REQUIRE(rank.phases.size() == 7);
  const StepPhase expected[] = {StepPhase::data, StepPhase::forward, StepPhase::backward, StepPhase::optimizer};
  for (std::size_t i = 0; i < 4; ++i) {
    FlightPhase phase = rank.phases[3 + i];
    CHECK(phase.phase == expected[i]);
    CHECK(phase.step == 2);
    CHECK(phase.begin_ns == rank.phases[2 + i].end_ns);
    phase.number = i + 1;
    CHECK(is_sound(phase));
  }
  CHECK(rank.phases[5].waiting_ns == 4'000'000);
  CHECK(rank.phases[5].communicating_ns == 3'000'000);
  CHECK(rank.phases[5].hidden_ns == 7'000'000);
  CHECK(rank.phases[5].end_ns - rank.phases[5].begin_ns == 37'000'000);
}

}  // namespace step_timer_test
