#include "lockstep/launch/outcome.h"

#include <doctest/doctest.h>

#include <csignal>

using namespace lockstep;

namespace {

RankEnd ended(int rank, int round, ExitStatus status) {
  RankEnd end;
  end.rank = rank;
  end.pid = 100 + rank;
  end.round = round;
  end.status = status;
  if (!status.ok()) end.failure = describe(status);
  return end;
}

int first_failed(std::vector<RankEnd> ranks) {
  const Outcome outcome{std::move(ranks), 0};
  const RankEnd* first = outcome.first_failure();
  return first == nullptr ? -1 : first->rank;
}

}  // namespace

TEST_CASE("the first failure is the one whose death was seen first") {
  CHECK(first_failed({ended(0, 1, {}), ended(1, 2, {})}) == -1);
  CHECK(first_failed({ended(0, 3, {.code = 1}), ended(1, 2, {.code = 1})}) == 1);
  CHECK(first_failed({ended(0, 1, {}), ended(1, 2, {.signal = SIGSEGV}), ended(2, 3, {.code = 1})}) == 1);
}

TEST_CASE("among deaths seen at once, a consequence is not the cause") {
  RankEnd stopped = ended(0, 1, {.signal = SIGTERM});
  stopped.told_to_stop = true;
  CHECK(first_failed({stopped}) == -1);
  CHECK(first_failed({stopped, ended(1, 1, {.code = 3})}) == 1);

  RankEnd lost_a_peer = ended(0, 1, {.code = 1});
  lost_a_peer.lost_a_peer = true;
  CHECK(first_failed({lost_a_peer, ended(1, 1, {.code = 1})}) == 1);
  CHECK(first_failed({lost_a_peer}) == 0);
  CHECK(first_failed({ended(0, 1, {.code = 1}), ended(1, 1, {.signal = SIGKILL})}) == 1);
  CHECK(first_failed({ended(0, 1, {.code = 1}), ended(1, 1, {.code = 2})}) == 0);
}

TEST_CASE("the report names the cause, its last lines, and what became of the others") {
  RankEnd failed = ended(1, 1, {.code = 3});
  failed.after_start = std::chrono::milliseconds(520);
  failed.last_error_lines = {"bad", "worse"};
  RankEnd stopped = ended(0, 2, {.signal = SIGKILL});
  stopped.told_to_stop = true;
  stopped.killed = true;
  CHECK(report({{stopped, failed}, 0}) ==
        std::vector<std::string>{
            "rank 1 (pid 101) exited with code 3, 0.52 s after it started; rank 0 was stopped because of it",
            "the last lines of rank 1 on standard error:", "  | bad", "  | worse",
            "rank 0 (pid 100) did not stop in time and was killed"});
  CHECK(report({{ended(0, 1, {})}, 0}).empty());
  CHECK(report({{ended(0, 1, {})}, SIGINT}) == std::vector<std::string>{"stopped by SIGINT"});
}

TEST_CASE("exit statuses read as a shell would say them") {
  CHECK(describe({.code = 7}) == "exited with code 7");
  CHECK(describe({.signal = SIGSEGV}) == "was killed by SIGSEGV");
  CHECK(describe({.signal = SIGABRT, .core_dumped = true}) == "was killed by SIGABRT (core dumped)");
  CHECK(signal_name(SIGRTMIN + 6) == "signal 40");
  CHECK(ExitStatus{.code = 3}.shell_code() == 3);
  CHECK(ExitStatus{.signal = SIGSEGV}.shell_code() == 139);
  CHECK_FALSE(ExitStatus{.signal = SIGSEGV}.ok());
}
