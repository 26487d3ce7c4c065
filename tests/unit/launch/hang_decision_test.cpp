#include "lockstep/job/launch/hang_decision.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace lockstep::internal {
namespace {

using namespace std::chrono_literals;

GroupPlace in(const std::string& group, int size, std::uint64_t sequence, FlightState state) {
  GroupPlace place{.group = group, .size = size};
  FlightRecord record;
  record.sequence = sequence;
  record.state = state;
  record.set_operation("barrier");
  place.last = record;
  place.text = "barrier #" + std::to_string(sequence);
  return place;
}

RankPlace rank(int number, std::vector<GroupPlace> groups) { return {.rank = number, .groups = std::move(groups)}; }

constexpr FlightState kInside = FlightState::running;
constexpr FlightState kOut = FlightState::done;

using Ranks = std::vector<int>;

TEST_CASE("who is not in the collective is the suspect, and who waits is not") {
  const Blockage blockage = find_blockage({rank(0, {in("world", 3, 4, kInside)}), rank(1, {in("world", 3, 3, kOut)}),
                                           rank(2, {in("world", 3, 4, kInside)})},
                                          3);
  CHECK(blockage.kind == BlockageKind::absent);
  CHECK(blockage.waiting == Ranks{0, 2});
  CHECK(blockage.suspects == Ranks{1});
  CHECK(blockage.blamed() == 1);
  CHECK(blockage.collective == "barrier #4");
}

TEST_CASE("a rank that has joined no group yet can be missing from a group of all ranks only") {
  const auto of = [](int size) {
    return find_blockage({rank(0, {in("g", size, 1, kInside)}), rank(1, {}), rank(2, {in("g", size, 1, kInside)})}, 3);
  };
  CHECK(of(3).suspects == Ranks{1});
  CHECK(of(2).kind == BlockageKind::together);
}

TEST_CASE("nobody waits if all are outside of collectives, or wait for messages") {
  CHECK(find_blockage({rank(0, {in("world", 2, 4, kOut)}), rank(1, {in("world", 2, 3, kOut)})}, 2).kind ==
        BlockageKind::none);
  RankPlace receiver = rank(0, {in("world", 2, 4, kOut)});
  receiver.message = FlightRecord{};
  CHECK(find_blockage({receiver, rank(1, {})}, 2).kind == BlockageKind::none);
  CHECK(find_blockage({}, 0).kind == BlockageKind::none);
}

TEST_CASE("a rank that has ended, or is on another machine, is no suspect") {
  CHECK(find_blockage({rank(0, {in("world", 3, 4, kInside)}), rank(2, {in("world", 3, 4, kInside)})}, 3).kind ==
        BlockageKind::none);
}

TEST_CASE("ranks that wait for each other are a circle, in which nobody is blamed") {
  const Blockage blockage = find_blockage(
      {rank(0, {in("a", 2, 1, kInside), in("b", 2, 0, kOut)}), rank(1, {in("a", 2, 0, kOut), in("b", 2, 1, kInside)})},
      2);
  CHECK(blockage.kind == BlockageKind::circle);
  CHECK(blockage.suspects == Ranks{0, 1});
  CHECK(blockage.waiting == Ranks{0, 1});
  CHECK(blockage.blamed() == -1);
}

TEST_CASE("the end of a chain of waits is the suspect") {
  // 0 waits in a for 1, which waits in b for 2, which is in no collective.
  const Blockage blockage =
      find_blockage({rank(0, {in("a", 2, 5, kInside)}), rank(1, {in("a", 2, 4, kOut), in("b", 2, 7, kInside)}),
                     rank(2, {in("b", 2, 6, kOut)})},
                    3);
  CHECK(blockage.kind == BlockageKind::absent);
  CHECK(blockage.suspects == Ranks{2});
}

TEST_CASE("a rank that is stopped is to blame, inside of the collective too") {
  std::vector<RankPlace> places{rank(0, {in("world", 2, 4, kInside)}), rank(1, {in("world", 2, 4, kInside)})};
  CHECK(find_blockage(places, 2).kind == BlockageKind::together);
  CHECK(find_blockage(places, 2).blamed() == -1);
  CHECK(find_blockage(places, 2).suspects == Ranks{0, 1});
  places[1].is_stopped = true;
  CHECK(find_blockage(places, 2).blamed() == 1);
  CHECK(find_blockage(places, 2).waiting == Ranks{0});
}

// Looks every half second.
class Watch {
 public:
  explicit Watch(const HangOptions& options) : timer_(options, now_) {}

  void move() { last_event_ = now_; }
  // The first step that is not `none`, and after how long; none after ten minutes.
  std::pair<HangStep, Duration> next(bool progress = false, BlockageKind kind = BlockageKind::absent) {
    const TimePoint start = now_;
    while (now_ < start + 10min) {
      now_ += 500ms;
      const HangStep step = timer_.look(now_, last_event_, kind, progress);
      if (step != HangStep::none) return {step, now_ - last_event_};
    }
    return {HangStep::none, now_ - last_event_};
  }
  HangStep pause(Duration time) {
    now_ += time;
    return timer_.look(now_, last_event_, BlockageKind::absent, false);
  }

 private:
  TimePoint now_{1000s};
  TimePoint last_event_{1000s};
  HangTimer timer_;
};

using Step = std::pair<HangStep, Duration>;

TEST_CASE("a hang is told after a minute, and then more rarely") {
  Watch watch({});
  CHECK(watch.next() == Step{HangStep::tell, 60s});
  CHECK(watch.next() == Step{HangStep::tell, 120s});
  CHECK(watch.next() == Step{HangStep::tell, 240s});
  watch.move();
  CHECK(watch.next() == Step{HangStep::tell, 60s});
}

TEST_CASE("a limit ends the job, once it was told") {
  Watch late({.end_after = 90s});
  CHECK(late.next() == Step{HangStep::tell, 60s});
  CHECK(late.next() == Step{HangStep::end, 90s});
  Watch early({.end_after = 5s});
  CHECK(early.next() == Step{HangStep::tell, 5s});
  CHECK(early.next() == Step{HangStep::end, 5500ms});
}

TEST_CASE("progress extends the wait, up to a cap") {
  Watch watch({.end_after = 60s, .hard_cap = 200s});
  CHECK(watch.next(true) == Step{HangStep::note, 60s});
  CHECK(watch.next(true) == Step{HangStep::note, 120s});
  CHECK(watch.next(true) == Step{HangStep::tell, 200s});
  CHECK(watch.next(true) == Step{HangStep::end, 200500ms});
}

TEST_CASE("the wait begins anew when progress ends") {
  Watch watch({});
  CHECK(watch.next(true) == Step{HangStep::note, 60s});
  CHECK(watch.next(false) == Step{HangStep::tell, 120s});
}

TEST_CASE("nothing is told while nobody waits") {
  Watch watch({});
  CHECK(watch.next(false, BlockageKind::none) == Step{HangStep::none, 600s});
  watch.move();  // somebody begins to wait
  CHECK(watch.next() == Step{HangStep::tell, 60s});
}

TEST_CASE("a pause of the launcher does not count") {
  Watch watch({.end_after = 60s});
  CHECK(watch.pause(1000s) == HangStep::none);
  CHECK(watch.next() == Step{HangStep::tell, 1060s});
}

}  // namespace
}  // namespace lockstep::internal
