#include "lockstep/job/elastic/job_hang.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep::internal {
namespace {

using namespace std::chrono_literals;

// A job of two hosts with a rank each, on virtual time. Clocks of hosts differ.
class Job {
 public:
  explicit Job(const HangOptions& options) : hang_(options, kGeneration, 2, now_) {}

  // Looks each second until something is to be done, for ten minutes at most.
  std::pair<JobHang::Result, Duration> next() {
    const TimePoint start = now_;
    while (now_ < start + 10min) {
      now_ += 1s;
      if (reports_) {
        tell(0, FlightState::running, 4);
        tell(1, FlightState::done, 3);
      }
      JobHang::Result result = hang_.look({0, 1}, now_);
      if (!result.lines.empty() || !result.verdict.empty()) return {std::move(result), now_ - still_since_};
    }
    return {{}, now_ - still_since_};
  }
  void move() { still_since_ = now_; }
  // A host that was still moves, which it says once.
  void move_and_say() {
    move();
    tell(0, FlightState::running, 5);
    tell(1, FlightState::done, 4);
    hang_.look({0, 1}, now_ += 2s);
  }
  bool has_told() const { return hang_.has_told(); }
  void delay_reports(Duration by) { delay_ = by; }
  void fall_silent() { reports_ = false; }
  void compute() { computes_ = true; }
  void other_generation() { generation_ = kGeneration - 1; }

 private:
  static constexpr int kGeneration = 5;

  void tell(int host, FlightState state, std::uint64_t sequence) {
    const HostEntry entry{.number = host, .name = host == 0 ? "a" : "b"};
    const std::int64_t skew = host * 1'000'000'000'000;
    FlightRecord record;
    record.sequence = sequence;
    record.state = state;
    record.started_ns = still_since_.time_since_epoch().count() + skew;
    RankStands stands{.generation = generation_, .now_ns = now_.time_since_epoch().count() + skew};
    stands.sight.place.rank = host;
    stands.sight.place.groups = {
        {.group = "world", .size = 2, .last = record, .text = "barrier #" + std::to_string(sequence)}};
    stands.sight.pid = 100 + host;
    stands.sight.has_recording = true;
    stands.sight.is_progress = computes_ && host == 1;
    stands.sight.state = 'S';
    hang_.hear(entry, stands, now_);
    const std::int64_t sent_ns = (now_ - delay_).time_since_epoch().count() + skew;
    hang_.hear(entry, HostStands{generation_, now_ - still_since_ >= 10s, sent_ns, record.started_ns}, now_);
  }

  TimePoint now_{1000s};
  TimePoint still_since_{1000s};
  Duration delay_{};
  bool reports_ = true;
  bool computes_ = false;
  int generation_ = kGeneration;
  JobHang hang_;
};

TEST_CASE("hosts that do not move are told of together, and the job is ended at its limit") {
  Job job({.end_after = 100s});
  const auto [told, after] = job.next();
  CHECK(after == 60s);
  REQUIRE(told.lines.size() == 3);
  CHECK(told.lines[0] == "the job has made no progress for 60 s: rank 0 waits in barrier #4 (group world) for rank 1");
  CHECK(told.lines[1] == "  rank 0 (host a, pid 100): in barrier #4 (group world) for 60 s; sleeping");
  CHECK(told.stacks_first_of == std::vector<int>{1});
  const auto [end, end_after] = job.next();
  CHECK(end_after == 100s);
  CHECK(end.blamed == 1);
  CHECK(end.verdict == "no progress for 100 s: rank 0 waits in barrier #4 (group world) for rank 1");
}

TEST_CASE("reports that are late by different times do not begin the wait anew") {
  Job job({});
  CHECK(job.next().second == 60s);
  job.delay_reports(30ms);
  CHECK(job.next().second == 120s);
}

TEST_CASE("a job that moves again does not hang any more") {
  Job job({});
  CHECK_FALSE(job.next().first.why.empty());
  CHECK(job.has_told());
  job.move_and_say();
  CHECK_FALSE(job.has_told());
  CHECK_FALSE(job.next().first.why.empty());
}

TEST_CASE("a job does not hang while a host moves, is silent, or speaks of another attempt") {
  Job moving({});
  moving.move();
  CHECK(moving.next().second == 60s);
  Job silent({});
  silent.fall_silent();
  CHECK(silent.next().first.lines.empty());
  Job old({});
  old.other_generation();
  CHECK(old.next().first.lines.empty());
}

TEST_CASE("a rank on another host that makes progress is noted, and not blamed before the cap") {
  Job job({.end_after = 70s, .hard_cap = 5min});
  job.compute();
  const auto [note, after] = job.next();
  CHECK(after == 60s);
  CHECK(note.lines.size() == 1);
  CHECK_FALSE(note.stacks_first_of.has_value());
  JobHang::Result result;
  Duration at{};
  do {
    std::tie(result, at) = job.next();
  } while (result.verdict.empty() && at < 10min);
  CHECK(at >= 5min);
  CHECK_FALSE(result.verdict.empty());
}

TEST_CASE("ranks that cannot be are left out") {
  JobHang hang({}, 0, 2, TimePoint(1000s));
  RankStands stands;
  stands.sight.place.rank = 7;
  hang.hear({.number = 1, .name = "b"}, stands, TimePoint(1001s));
  hang.hear({.number = 1, .name = "b"}, HostStands{0, true, 61'000'000'000, 1'000'000'000}, TimePoint(1001s));
  CHECK(hang.look({1}, TimePoint(1002s)).lines.empty());
}

}  // namespace
}  // namespace lockstep::internal
