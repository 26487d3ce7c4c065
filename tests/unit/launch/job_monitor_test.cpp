#include "lockstep/job/launch/job_monitor.h"

#include <doctest/doctest.h>

namespace job_monitor_test {

namespace {

using namespace lockstep;
using namespace lockstep::internal;

JobEvent event(JobEvent::Kind kind, std::vector<HostOfEvent> hosts, std::optional<Outcome> outcome = {}) {
  int ranks = 0;
  for (const HostOfEvent& host : hosts) ranks += host.ranks;
  return {.kind = kind,
          .job_id = "job",
          .run_id = "run",
          .world_size = ranks,
          .hosts = std::move(hosts),
          .outcome = std::move(outcome)};
}

Outcome failed(int signal) {
  Outcome outcome;
  RankEnd& end = outcome.ranks.emplace_back();
  end.status.signal = signal;
  end.status.code = signal == 0 ? 3 : 0;
  end.failure.text = "failed";
  return outcome;
}

RankStatus rank(int number, std::uint64_t steps) {
  return {.rank = number, .state = RankState::running, .numbers = {.steps = steps, .values = {{"loss", 0.5}}}};
}

}  // namespace

TEST_CASE("a first host that hears late that it belongs to the job runs on") {
  JobMonitor monitor;
  monitor.on_event(event(JobEvent::Kind::start, {{"a", 0, 2}}));
  monitor.join("job", "run", true);
  CHECK(monitor.status().state == JobState::running);
  monitor.join("job", "run", false);
  CHECK(monitor.status().state == JobState::running);
  CHECK_FALSE(monitor.status().is_first);
}

TEST_CASE("counters of ranks go on over restarts, whichever host has the rank") {
  JobMonitor monitor;
  CHECK(monitor.status().state == JobState::gathering);
  monitor.on_event(event(JobEvent::Kind::start, {{"a", 0, 2}, {"b", 2, 1}}));
  monitor.on_ranks("a", {rank(0, 10), rank(1, 11)});
  monitor.on_ranks("b", {rank(2, 12)});
  monitor.on_ranks("c", {rank(2, 99)});  // that has no such rank
  monitor.on_ranks("a", {rank(7, 99)});
  CHECK(monitor.status().ranks[2].status.numbers.steps == 12);
  monitor.on_event(event(JobEvent::Kind::restart, {{"a", 0, 2}}, failed(9)));
  WatchedJob status = monitor.status();
  REQUIRE(status.ranks.size() == 2);
  CHECK(status.ranks[1].status.numbers.steps == 11);
  CHECK(status.ranks[1].status.numbers.values.empty());
  CHECK(status.ranks[1].status.state == RankState::starting);
  monitor.on_ranks("a", {rank(0, 1), rank(1, 2)});
  monitor.on_event(event(JobEvent::Kind::restart, {{"a", 0, 1}, {"d", 1, 2}}, failed(0)));
  monitor.on_ranks("d", {rank(1, 5), rank(2, 6)});
  status = monitor.status();
  CHECK(status.ranks[0].status.numbers.steps == 11);
  CHECK(status.ranks[1].status.numbers.steps == 11 + 2 + 5);
  CHECK(status.ranks[2].status.numbers.steps == 12 + 6);
  CHECK(status.attempts == 3);
  CHECK(status.restarts == 2);
  CHECK(status.failures == std::array<int, kFailureKinds>{1, 1, 0, 0, 0});
}

TEST_CASE("room for other hosts is made without a failure") {
  JobMonitor monitor;
  monitor.on_event(event(JobEvent::Kind::start, {{"a", 0, 1}}));
  monitor.on_event(event(JobEvent::Kind::restart, {{"a", 0, 1}, {"b", 1, 1}}, Outcome()));
  CHECK(monitor.status().attempts == 2);
  CHECK(monitor.status().restarts == 0);
  CHECK(monitor.status().failures == std::array<int, kFailureKinds>{});
}

TEST_CASE("a job with too few hosts gathers, with what is there") {
  JobMonitor monitor;
  monitor.join("job", "run", true);
  monitor.on_gathering({{"a", 0, 2}});
  CHECK(monitor.status().hosts == 1);
  CHECK(monitor.status().world_size == 2);
  monitor.on_event(event(JobEvent::Kind::start, {{"a", 0, 2}, {"b", 2, 1}}));
  monitor.on_ranks("a", {rank(0, 10), rank(1, 11)});
  monitor.on_ranks("b", {rank(2, 12)});
  for (int again = 0; again < 2; ++again) monitor.on_gathering({{"a", 0, 2}});
  monitor.on_ranks("a", {rank(0, 11)});
  const WatchedJob status = monitor.status();
  CHECK(status.state == JobState::gathering);
  CHECK(status.hosts == 1);
  CHECK(status.world_size == 2);
  REQUIRE(status.ranks.size() == 2);
  CHECK(status.ranks[0].status.numbers.steps == 11);
  monitor.on_event(event(JobEvent::Kind::restart, {{"a", 0, 2}, {"c", 2, 1}}, Outcome()));
  CHECK(monitor.status().state == JobState::running);
  REQUIRE(monitor.status().ranks.size() == 3);
  CHECK(monitor.status().ranks[0].status.numbers.steps == 11);
  CHECK(monitor.status().ranks[2].status.numbers.steps == 12);
}

TEST_CASE("a host that becomes the first gathers anew") {
  JobMonitor monitor;
  monitor.join("job", "run", false);
  CHECK(monitor.status().state == JobState::running);
  monitor.join("job", "run", true);
  CHECK(monitor.status().state == JobState::gathering);
}

TEST_CASE("kinds of failures") {
  CHECK(kind_of_failure(failed(0)) == FailureKind::exit_code);
  CHECK(kind_of_failure(failed(11)) == FailureKind::signal);
  Outcome outcome = failed(9);
  outcome.ranks[0].failure.out_of_memory = true;
  CHECK(kind_of_failure(outcome) == FailureKind::out_of_memory);
  outcome.hang = "for rank 1";
  CHECK(kind_of_failure(outcome) == FailureKind::hang);
  Outcome lost = failed(0);
  lost.ranks[0].failure.fault = Fault::consequence;
  lost.lost = {{.host = "b"}};
  CHECK(kind_of_failure(lost) == FailureKind::lost_host);
  lost.ranks.clear();
  CHECK(kind_of_failure(lost) == FailureKind::lost_host);
}

TEST_CASE("a job is well until it hangs or has failed") {
  JobMonitor monitor;
  const auto why = [&] {
    std::string text;
    const bool is_well = monitor.status().is_well(text);
    CHECK(is_well == text.empty());
    return text;
  };
  CHECK(why().empty());
  monitor.on_event(event(JobEvent::Kind::start, {{"a", 0, 1}}));
  monitor.on_hang("rank 0 waits");
  CHECK(why() == "the job hangs: rank 0 waits");
  monitor.on_hang("");
  CHECK(why().empty());
  monitor.on_event(event(JobEvent::Kind::loss, {{"a", 0, 1}}));
  CHECK(monitor.status().state == JobState::restarting);
  CHECK(monitor.status().hosts_lost == 1);
  CHECK(why().empty());
  JobEvent stop = event(JobEvent::Kind::end, {});
  stop.exit_code = 143;
  stop.stop_signal = 15;
  monitor.on_event(stop);
  CHECK(monitor.status().state == JobState::stopped);
  CHECK(why().empty());
  JobEvent end = event(JobEvent::Kind::end, {}, failed(0));
  end.exit_code = 3;
  monitor.on_event(end);
  CHECK(why() == "the job has failed");
}

}  // namespace job_monitor_test
