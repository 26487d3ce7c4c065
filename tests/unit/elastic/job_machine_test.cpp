#include "lockstep/job/elastic/job_machine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <utility>

#include "tests/graphs/dice.h"

namespace job_machine_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

// A job whose hosts do what they are told.
struct Stage {
  explicit Stage(const JobMachineOptions& options) : machine(options, now) {}

  bool come(int number, int ranks = 2) {
    return !machine.arrive({.number = number, .name = "h" + std::to_string(number), .ranks = ranks}, now);
  }
  std::vector<JobOrder::Kind> orders() {
    std::vector<JobOrder::Kind> kinds;
    for (;;) {
      const auto some = machine.take_orders(now);
      if (some.empty()) return kinds;
      for (const JobOrder& order : some) kinds.push_back(order.kind);
    }
  }
  void end_rank(int rank, int code, bool told = false) {
    for (const Slot& slot : machine.slots()) {
      if (rank < slot.first_rank || rank >= slot.first_rank + slot.ranks) continue;
      RankEnd end;
      end.rank = rank;
      end.status.code = code;
      end.told_to_stop = told;
      if (code != 0) end.failure.text = "exited";
      machine.rank_ended(slot.host, machine.generation(), end, now);
    }
  }
  void end_host(int host, int code, bool told = false) {
    const std::vector<Slot> slots = machine.slots();
    for (const Slot& slot : slots) {
      if (slot.host != host) continue;
      for (int i = 0; i < slot.ranks; ++i) end_rank(slot.first_rank + i, code, told);
      machine.host_done(host, machine.generation(), now);
    }
  }

  TimePoint now{1h};
  JobMachine machine;
};

using Kind = JobOrder::Kind;
using Kinds = std::vector<JobOrder::Kind>;

// The only rank of the host ends since it has lost another one.
void lose(Stage& stage, int rank, int blamed) {
  RankEnd end;
  end.rank = rank;
  end.status.code = 1;
  end.failure = {.text = "exited", .fault = Fault::consequence, .blamed = blamed};
  stage.machine.rank_ended(rank, stage.machine.generation(), end, stage.now);
  stage.machine.host_done(rank, stage.machine.generation(), stage.now);
}

}  // namespace

TEST_CASE("a job begins with all hosts and ends well") {
  Stage stage({.least = 2, .most = 2});
  CHECK(stage.come(0));
  CHECK(stage.orders().empty());
  CHECK(stage.machine.waits_for() == "1 more host");
  CHECK(stage.come(1));
  CHECK(stage.orders() == Kinds{Kind::start});
  stage.end_host(0, 0);
  CHECK(stage.orders().empty());
  stage.end_host(1, 0);
  CHECK(stage.orders() == Kinds{Kind::report, Kind::finish});
  CHECK(stage.machine.result().exit_code == 0);
}

TEST_CASE("the last call") {
  Stage stage({.least = 1, .most = 4, .last_call = 30s});
  stage.come(0);
  CHECK(stage.orders().empty());
  CHECK(stage.machine.wake_at().when() == stage.now + 30s);
  stage.now += 20s;
  stage.come(1);
  CHECK(stage.orders().empty());
  stage.now += 10s;
  CHECK(stage.orders() == Kinds{Kind::start});
  CHECK(stage.machine.slots().size() == 2);
}

TEST_CASE("nobody comes") {
  Stage stage({.least = 2, .most = 2, .join_timeout = 60s});
  stage.come(0);
  stage.now += 60s;
  CHECK(stage.orders() == Kinds{Kind::finish});
  CHECK(stage.machine.result().exit_code == kRendezvousExitCode);
}

TEST_CASE("a failure ends the others, and uses a restart") {
  Stage stage({.least = 2, .most = 2, .max_restarts = 1});
  stage.come(0);
  stage.come(1);
  stage.orders();
  for (const int restarts : {1, 0}) {
    stage.end_rank(1, 3);
    CHECK(stage.orders().empty());
    stage.now += 250ms;
    CHECK(stage.orders() == Kinds{Kind::end});
    stage.end_host(0, 0, true);
    stage.end_host(1, 0, true);
    CHECK(stage.orders() == (restarts == 1 ? Kinds{Kind::report, Kind::start} : Kinds{Kind::report, Kind::finish}));
  }
  CHECK(stage.machine.result().exit_code == 3);
}

TEST_CASE("ranks that cannot be started end the job as the attempt before has ended") {
  for (const int attempts : {1, 2}) {
    CAPTURE(attempts);
    Stage stage({.max_restarts = 9});
    stage.come(0, 1);
    CHECK(stage.orders() == Kinds{Kind::start});
    if (attempts == 2) {
      stage.end_host(0, 5);
      CHECK(stage.orders() == Kinds{Kind::report, Kind::start});
    }
    RankEnd end;
    end.pid = kNotStarted;
    end.status.code = 127;
    end.failure.text = "could not be started";
    stage.machine.rank_ended(0, stage.machine.generation(), end, stage.now);
    stage.machine.host_done(0, stage.machine.generation(), stage.now);
    CHECK(stage.orders() == Kinds{Kind::report, Kind::finish});
    CHECK(stage.machine.result().exit_code == (attempts == 2 ? 5 : 127));
  }
}

TEST_CASE("a lost host is no restart while enough are left") {
  Stage stage({.least = 1, .most = 2});
  stage.come(0);
  stage.come(1);
  stage.orders();
  stage.machine.lose(1, "gone", true, stage.now);
  CHECK(stage.orders() == Kinds{Kind::end});
  stage.end_host(0, 1, true);
  // A host that is only not seen gets time to end itself.
  CHECK(stage.orders() == Kinds{Kind::report});
  stage.now += 1s;
  CHECK(stage.orders() == Kinds{Kind::start});
  CHECK(stage.machine.restarts() == 0);
  CHECK(stage.machine.generation() == 1);
}

TEST_CASE("too few are left") {
  Stage stage({.least = 2, .most = 2});
  stage.come(0);
  stage.come(1);
  stage.orders();
  stage.machine.lose(1, "gone", false, stage.now);
  stage.orders();
  stage.end_host(0, 1, true);
  CHECK(stage.orders() == Kinds{Kind::report, Kind::finish});
  CHECK(stage.machine.result().exit_code == kRendezvousExitCode);
}

TEST_CASE("who comes late is taken in; who is one too many waits") {
  Stage stage({.least = 1, .most = 2, .last_call = 0s});
  stage.come(0);
  CHECK(stage.orders() == Kinds{Kind::start});
  stage.come(1);
  CHECK(stage.orders() == Kinds{Kind::stop});
  stage.end_host(0, 0, true);
  CHECK(stage.orders() == Kinds{Kind::report, Kind::start});
  CHECK(stage.machine.slots().size() == 2);
  stage.come(2);
  CHECK(stage.orders().empty());
}

TEST_CASE("a host that is to leave is dismissed when the ranks have ended, and the others begin again") {
  Stage stage({.least = 1, .most = 3});
  for (int host = 0; host < 3; ++host) stage.come(host);
  stage.orders();
  stage.machine.leave(2, stage.now);
  CHECK(stage.orders() == Kinds{Kind::stop});
  for (int host = 0; host < 3; ++host) stage.end_host(host, 0, true);
  CHECK(stage.orders() == Kinds{Kind::report, Kind::dismiss, Kind::start});
  CHECK(stage.machine.outcome().left.empty());  // of the new attempt
  CHECK(stage.machine.slots().size() == 2);
  CHECK(stage.machine.restarts() == 0);
}

TEST_CASE("without the first host the others meet anew, and when all are to leave the job has stopped") {
  for (const bool all : {false, true}) {
    Stage stage({.least = 1, .most = 3, .stop_exit_code = 33});
    for (int host = 0; host < 3; ++host) stage.come(host);
    stage.orders();
    for (int host = 0; host < (all ? 3 : 1); ++host) stage.machine.leave(host, stage.now);
    CHECK(stage.orders() == Kinds{Kind::stop});
    for (int host = 0; host < 3; ++host) stage.end_host(host, 0, true);
    CHECK(stage.orders() == Kinds{Kind::report, Kind::finish});
    CHECK(stage.machine.result().goes_on == !all);
    CHECK(stage.machine.result().exit_code == (all ? 33 : kLeftExitCode));
    CHECK(stage.machine.outcome().stop_signal == SIGTERM);
  }
}

TEST_CASE("a rank that fails after a host was asked to leave uses a restart, or ends the job") {
  for (const int restarts : {0, 1}) {
    Stage stage({.least = 1, .most = 3, .max_restarts = restarts});
    for (int host = 0; host < 3; ++host) stage.come(host);
    stage.orders();
    stage.machine.leave(2, stage.now);
    CHECK(stage.orders() == Kinds{Kind::stop});
    RankEnd failed;
    failed.rank = 4;
    failed.status.code = 3;
    failed.failure.text = "exited";
    failed.told_to_stop = true;
    failed.own_end = OwnEnd::after_request;
    stage.machine.rank_ended(2, stage.machine.generation(), failed, stage.now);
    stage.machine.host_done(2, stage.machine.generation(), stage.now);
    for (int host = 0; host < 2; ++host) stage.end_host(host, 0, true);
    CHECK(stage.orders() ==
          (restarts == 1 ? Kinds{Kind::report, Kind::dismiss, Kind::start} : Kinds{Kind::report, Kind::finish}));
    CHECK(stage.machine.restarts() == restarts);
    if (restarts == 0) CHECK(stage.machine.result().exit_code == 3);
  }
}

TEST_CASE("a job that has ended by itself has not been left") {
  Stage stage({.least = 1, .most = 2});
  stage.come(0);
  stage.come(1);
  stage.orders();
  stage.machine.leave(1, stage.now);
  for (int host = 0; host < 2; ++host) stage.end_host(host, 0);
  CHECK(stage.orders() == Kinds{Kind::report, Kind::finish});
  CHECK(stage.machine.result().exit_code == 0);
}

TEST_CASE("a host without a place leaves at once, and one that insists has its ranks killed") {
  Stage stage({.least = 1, .most = 2});
  for (int host = 0; host < 3; ++host) stage.come(host);
  stage.orders();
  stage.machine.leave(2, stage.now);
  CHECK(stage.orders() == Kinds{Kind::dismiss});
  CHECK(stage.machine.undisturbed());
  stage.machine.leave(1, stage.now);
  CHECK(stage.orders() == Kinds{Kind::stop});
  stage.now += 500ms;
  stage.machine.leave(1, stage.now);
  CHECK(stage.orders().empty());
  stage.now += 600ms;
  stage.machine.leave(1, stage.now);
  CHECK(stage.orders() == Kinds{Kind::kill});
}

TEST_CASE("a host that is lost again within the interval costs a restart") {
  for (const Duration pause : {599s, 600s}) {
    Stage stage({.least = 1, .most = 2, .loss_interval = 600s});
    stage.come(0);
    for (int number : {1, 2}) {
      CHECK(!stage.machine.arrive({.number = number, .name = "b", .ranks = 2}, stage.now));
      if (number == 2) {
        CHECK(stage.orders() == Kinds{Kind::stop});
        stage.end_host(0, 0, true);
      }
      stage.orders();
      stage.machine.lose(number, "gone", false, stage.now);
      CHECK(stage.orders() == Kinds{Kind::end});
      stage.end_host(0, 1, true);
      if (number == 2) break;
      CHECK(stage.orders() == Kinds{Kind::report, Kind::start});
      stage.now += pause;
    }
    CHECK(stage.orders() == Kinds{Kind::report, pause < 600s ? Kind::finish : Kind::start});
  }
}

TEST_CASE("two hosts that do not reach each other are named where neither can be left out") {
  Stage stage({.least = 3, .most = 3});
  for (int host = 0; host < 3; ++host) stage.come(host, 1);
  stage.orders();
  lose(stage, 1, 2);
  lose(stage, 2, 1);
  lose(stage, 0, 2);
  CHECK(stage.orders() == Kinds{Kind::report, Kind::finish});
  CHECK(stage.machine.outcome().apart ==
        "hosts h2 and h1 cannot reach each other (ranks 2 and 1 lost their connection to each other, but the first "
        "host reaches both): check routes and firewalls between them");
}

TEST_CASE("of two hosts that do not reach each other one is kept out until they do") {
  Stage stage({.least = 1, .most = 3});
  for (int host = 0; host < 3; ++host) stage.come(host, 1);
  stage.orders();
  lose(stage, 1, 2);
  lose(stage, 2, 1);
  lose(stage, 0, 2);
  CHECK(stage.orders() == Kinds{Kind::keep_out, Kind::report, Kind::start});
  CHECK(stage.machine.slots().size() == 2);
  CHECK(stage.machine.hosts().size() == 3);
  stage.machine.reach(2, stage.now);
  CHECK(stage.orders() == Kinds{Kind::stop});
  for (int host = 0; host < 2; ++host) stage.end_host(host, 0, true);
  CHECK(stage.orders() == Kinds{Kind::report, Kind::start});
  CHECK(stage.machine.slots().size() == 3);
}

TEST_CASE("a request to stop, and the second") {
  Stage stage({.least = 1, .most = 1, .max_restarts = 5});
  stage.come(0);
  stage.orders();
  stage.machine.ask_to_stop(0, SIGTERM, stage.now);
  CHECK(stage.orders() == Kinds{Kind::stop});
  stage.machine.ask_to_stop(0, SIGTERM, stage.now);
  CHECK(stage.orders().empty());
  stage.now += 1s;
  stage.machine.ask_to_stop(0, SIGTERM, stage.now);
  CHECK(stage.orders() == Kinds{Kind::kill});
  stage.end_host(0, 1, true);
  CHECK(stage.orders() == Kinds{Kind::report, Kind::finish});
  CHECK(stage.machine.result().exit_code == kStoppedExitCode);
}

TEST_CASE("a second host that is asked to stop insists on nothing") {
  Stage stage({.least = 3, .most = 3});
  for (int host = 0; host < 3; ++host) stage.come(host);
  stage.orders();
  stage.machine.ask_to_stop(1, SIGTERM, stage.now);
  CHECK(stage.orders() == Kinds{Kind::stop});
  stage.now += 2s;
  stage.machine.ask_to_stop(kOutside, SIGINT, stage.now);
  stage.machine.ask_to_stop(0, SIGINT, stage.now);
  stage.machine.ask_to_stop(2, SIGTERM, stage.now);
  CHECK(stage.orders().empty());
  CHECK_FALSE(stage.machine.insisted());
  stage.now += 1s;
  stage.machine.ask_to_stop(2, SIGTERM, stage.now);
  CHECK(stage.orders() == Kinds{Kind::kill});
}

TEST_CASE("node ranks that cannot be") {
  Stage stage({.least = 2, .most = 2});
  CHECK_FALSE(stage.machine.arrive({.number = 0, .name = "a", .wanted = 1}, stage.now));
  CHECK(stage.machine.arrive({.number = 1, .name = "b", .wanted = 1}, stage.now)->why ==
        "node rank 1 belongs to host a, which has already joined");
  CHECK(stage.machine.arrive({.number = 2, .name = "b", .wanted = 2}, stage.now).has_value());
  Stage elastic({.least = 1, .most = 2});
  elastic.come(0);
  elastic.machine.arrive({.number = 1, .name = "b", .wanted = 1}, elastic.now);
  CHECK(elastic.orders() == Kinds{Kind::start});
  elastic.machine.leave(1, elastic.now);
  CHECK(elastic.machine.arrive({.number = 2, .name = "b", .wanted = 1}, elastic.now)->why ==
        "node rank 1 belongs to host b, which has not left yet");
}

// Whatever happens, in any order: every attempt has MIN to MAX hosts that are there, a new generation, no more restarts
// than allowed; none begins before all ranks of the last have ended; and the job ends once everybody does.
TEST_CASE("random lives of jobs") {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    testing::Dice dice(seed);
    const auto below = [&](int n) { return static_cast<int>(dice.next() % static_cast<std::uint64_t>(n)); };
    const int least = 1 + below(3);
    const JobMachineOptions options{
        .least = least, .most = least + below(3), .max_restarts = below(3), .last_call = 2s};
    Stage stage(options);
    JobMachine& machine = stage.machine;
    std::set<int> here, busy;
    int next = 0, generation = -1;
    const auto take = [&] {
      for (const Kind kind : stage.orders()) {
        if (kind != Kind::start) continue;
        REQUIRE(busy.empty());
        REQUIRE(machine.generation() == ++generation);
        REQUIRE(machine.restarts() <= options.max_restarts);
        REQUIRE(std::cmp_greater_equal(machine.slots().size(), options.least));
        REQUIRE(std::cmp_less_equal(machine.slots().size(), options.most));
        for (const Slot& slot : machine.slots()) {
          REQUIRE(here.contains(slot.host));
          busy.insert(slot.host);
        }
      }
    };
    if (stage.come(next)) here.insert(next++);
    for (int step = 0; step < 60 && !machine.over(); ++step) {
      const int event = below(20);
      const auto some = [&](const std::set<int>& set) {
        return *std::next(set.begin(), below(static_cast<int>(set.size())));
      };
      if (event < 5 && here.size() < 6) {
        if (stage.come(next)) here.insert(next++);
      } else if (event < 8 && here.size() > 1) {
        const int gone = *std::next(here.begin(), 1 + below(static_cast<int>(here.size()) - 1));
        here.erase(gone);
        busy.erase(gone);
        machine.lose(gone, "gone", below(2) == 0, stage.now);
      } else if (event < 15 && !busy.empty()) {
        const int done = some(busy);
        stage.end_host(done, below(4) == 0 ? 1 : 0, below(2) == 0);
        busy.erase(done);
      } else if (event == 19 && below(5) == 0) {
        machine.ask_to_stop(0, SIGTERM, stage.now);
      }
      stage.now += std::chrono::milliseconds(below(700));
      take();
    }
    for (int step = 0; step < 20 && !machine.over(); ++step) {
      for (const int host : busy) stage.end_host(host, 0);
      busy.clear();
      stage.now += 601s;
      take();
    }
    REQUIRE(machine.over());
  }
}

}  // namespace job_machine_test
