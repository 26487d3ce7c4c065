#include "lockstep/job/launch/outcome.h"

#include <doctest/doctest.h>

#include <csignal>
#include <string>

namespace outcome_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

RankEnd ended(int rank, int round, ExitStatus status) {
  RankEnd end;
  end.rank = rank;
  end.pid = 100 + rank;
  end.round = round;
  end.status = status;
  if (!status.ok()) end.failure.text = describe(status);
  return end;
}

int first_failed(std::vector<RankEnd> ranks, int stop_signal = 0) {
  const Outcome outcome{std::move(ranks), stop_signal};
  const RankEnd* first = outcome.first_failure();
  return first == nullptr ? -1 : first->rank;
}

}  // namespace

TEST_CASE("of failures with reasons of their own, what a signal struck comes first, then who was seen first") {
  CHECK(first_failed({ended(0, 1, {}), ended(1, 2, {})}) == -1);
  CHECK(first_failed({ended(0, 3, {.code = 1}), ended(1, 2, {.code = 1})}) == 1);
  CHECK(first_failed({ended(0, 1, {.code = 1}), ended(1, 1, {.code = 2})}) == 0);
  CHECK(first_failed({ended(0, 1, {.code = 1}), ended(1, 2, {.signal = SIGKILL})}) == 1);
  CHECK(first_failed({ended(0, 1, {.code = 1}), ended(1, 2, {.signal = SIGABRT})}) == 0);
}

TEST_CASE("a consequence is not the cause, whichever was seen first") {
  RankEnd stopped = ended(0, 1, {.signal = SIGTERM});
  stopped.told_to_stop = true;
  CHECK(first_failed({stopped}) == -1);
  CHECK(first_failed({stopped, ended(1, 1, {.code = 3})}) == 1);

  RankEnd lost = ended(0, 1, {.signal = SIGABRT});
  lost.failure.fault = Fault::consequence;
  lost.failure.blamed = 2;
  CHECK(first_failed({lost}) == 0);
  CHECK(first_failed({lost, ended(1, 5, {.code = 1})}) == 1);
  CHECK(first_failed({lost, ended(1, 2, {.code = 1}), ended(2, 5, {.code = 1})}) == 2);

  RankEnd timed_out = ended(1, 3, {.code = 1});
  timed_out.failure.fault = Fault::disagreement;
  CHECK(first_failed({lost, timed_out}) == 1);
  CHECK(first_failed({lost, timed_out, ended(2, 4, {.code = 1})}) == 2);
}

TEST_CASE("a rank that was told to stop is the cause if it is named, and ended by something else than that") {
  RankEnd lost = ended(2, 1, {.code = 1});
  lost.failure.fault = Fault::consequence;
  lost.failure.blamed = 1;
  RankEnd late = ended(1, 2, {.code = 139});
  late.told_to_stop = true;
  RankEnd stopped = ended(0, 2, {.signal = SIGTERM});
  stopped.told_to_stop = true;
  CHECK(first_failed({stopped, late, lost}) == 2);
  late.own_end = OwnEnd::after_failure;
  CHECK(first_failed({stopped, late, lost}) == 1);
  CHECK(report({{stopped, late, lost}, 0})[0] ==
        "rank 1 (pid 101) exited with code 139, 0.00 s after it started; rank 2 failed because of it; rank 0 was "
        "stopped because of it");
  CHECK(first_failed({stopped, late, lost, ended(3, 1, {.code = 3})}) == 3);  // had not been told
  lost.failure.blamed = 0;
  CHECK(first_failed({stopped, late, lost}) == 2);
  lost.told_to_stop = true;
  lost.failure.blamed = 1;
  CHECK(first_failed({stopped, late, lost}) == -1);
}

TEST_CASE("a rank that crashes after a request to stop is the cause, one that lost a rank then is not") {
  RankEnd crashed = ended(0, 1, {.signal = SIGSEGV});
  crashed.told_to_stop = true;
  crashed.own_end = OwnEnd::after_request;
  RankEnd lost = ended(1, 1, {.code = 1});
  lost.told_to_stop = true;
  lost.own_end = OwnEnd::after_request;
  lost.failure.fault = Fault::consequence;
  lost.failure.blamed = 0;
  RankEnd stopped = ended(2, 1, {.signal = SIGTERM});
  stopped.told_to_stop = true;
  CHECK(first_failed({stopped, lost, crashed}, SIGTERM) == 0);
  CHECK(first_failed({stopped, lost, crashed}) == -1);
  CHECK(first_failed({stopped, lost}, SIGTERM) == -1);
  const Outcome outcome{{crashed, lost, stopped}, SIGTERM};
  CHECK(exit_code_of(outcome) == 128 + SIGSEGV);
  CHECK(report(outcome) == std::vector<std::string>{"rank 0 (pid 100) was killed by SIGSEGV, 0.00 s after it started",
                                                    "stopped by SIGTERM"});
  lost.failure.fault = Fault::own;
  lost.status = {.signal = SIGPIPE};
  CHECK(first_failed({stopped, lost}, SIGTERM) == -1);
}

TEST_CASE("after a request to stop any exit code is a failure that is no answer to it, also if all ranks have it") {
  RankEnd first = ended(0, 1, {.code = 1});
  first.told_to_stop = true;
  first.own_end = OwnEnd::after_request;
  RankEnd second = first;
  second.rank = 1;
  CHECK(first_failed({first}, SIGTERM) == 0);
  CHECK(first_failed({first, second}, SIGTERM) == 0);
  CHECK(exit_code_of({{first, second}, SIGTERM}) == 1);
  CHECK(report({{first, second}, SIGTERM}) ==
        std::vector<std::string>{"rank 0 (pid 100) exited with code 1, 0.00 s after it started", "stopped by SIGTERM"});
  for (const int code : {0, kStoppedExitCode, 128 + SIGTERM, 128 + SIGINT, 128 + SIGHUP}) {
    first.status.code = code;
    CHECK(first_failed({first}, SIGHUP) == -1);
    CHECK(exit_code_of({{first}, SIGHUP}) == kStoppedExitCode);
  }
  CHECK(first_failed({first}, SIGTERM) == 0);
  first.status.code = kStoppedExitCode;
  CHECK(first_failed({first, second}, SIGTERM) == 1);
  Outcome chosen{.ranks = {first}, .stop_signal = SIGTERM, .stop_exit_code = 42};
  CHECK(exit_code_of(chosen) == kStoppedExitCode);  // as a failure's
  chosen.ranks[0].status.code = 42;
  CHECK_FALSE(chosen.failed());
  CHECK(exit_code_of(chosen) == 42);
  first.status.code = 128 + SIGSEGV;  // of a shell
  CHECK(first_failed({first}, SIGTERM) == 0);
  first.status = {.signal = SIGINT};
  CHECK(first_failed({first}, SIGTERM) == -1);
}

TEST_CASE("a failure after hosts were asked to leave is one, as after a stop; not while room is made for others") {
  RankEnd failed = ended(0, 1, {.code = 3});
  failed.told_to_stop = true;
  failed.own_end = OwnEnd::after_request;
  RankEnd saved = ended(1, 1, {});
  saved.told_to_stop = true;
  Outcome outcome{.ranks = {failed, saved}};
  CHECK_FALSE(outcome.failed());
  CHECK(restart_reason(outcome) == "other hosts have joined");
  outcome.left = {"c"};
  REQUIRE(outcome.failed());
  CHECK(exit_code_of(outcome) == 3);
  CHECK(report(outcome) == std::vector<std::string>{"rank 0 (pid 100) exited with code 3, 0.00 s after it started"});
  CHECK(restart_reason(outcome) == "rank 0 (pid 100) exited with code 3");
  outcome.ranks[1] = failed;
  CHECK(outcome.failed());
  outcome.ranks[0].status.code = outcome.ranks[1].status.code = kStoppedExitCode;
  CHECK_FALSE(outcome.failed());
  CHECK(restart_reason(outcome) == "host c has left");
}

TEST_CASE("the report names the cause, its error and last lines, and what became of the others") {
  RankEnd failed = ended(1, 1, {.code = 3});
  failed.after_start = std::chrono::milliseconds(520);
  failed.error = "bad";
  failed.last_error_lines = {"bad", "worse"};
  RankEnd stopped = ended(0, 2, {.signal = SIGKILL});
  stopped.told_to_stop = true;
  stopped.killed = true;
  RankEnd lost = ended(2, 2, {.code = 1});
  lost.failure.fault = Fault::consequence;
  CHECK(report({{stopped, failed, lost}, 0}) ==
        std::vector<std::string>{"rank 1 (pid 101) exited with code 3, 0.52 s after it started; rank 2 failed because "
                                 "of it; rank 0 was stopped because of it",
                                 "its error: bad", "the last lines of rank 1 on standard error:", "  | bad",
                                 "  | worse", "rank 0 (pid 100) did not stop in time and was killed"});
  CHECK(report({{ended(0, 1, {})}, 0}).empty());
  CHECK(report({{ended(0, 1, {})}, SIGINT}) == std::vector<std::string>{"stopped by SIGINT"});
}

TEST_CASE("a rank that others name, but that did not fail, is looked at too") {
  RankEnd lost = ended(0, 2, {.code = 1});
  lost.failure = {.text = "exited with code 1", .fault = Fault::consequence, .blamed = 1};
  lost.after_start = std::chrono::milliseconds(700);
  RankEnd early = ended(1, 1, {});
  early.after_start = std::chrono::milliseconds(500);
  CHECK(report({{lost, early}, 0}) ==
        std::vector<std::string>{
            "rank 0 (pid 100) exited with code 1, 0.70 s after it started",
            "rank 1, which this error names, had exited with code 0, 0.50 s after it started; other ranks were still "
            "training: did it call exit(), or return from main() too early?"});
  early.told_to_stop = true;
  CHECK(report({{lost, early}, 0})[1] == "rank 1, which this error names, was still running");
}

TEST_CASE("who came late to its last operation is told so") {
  RankEnd late = ended(0, 1, {.code = 1});
  late.last_operation = "all_gather #3, not finished";
  CHECK(report({{late}, 0})[1] == "its last operation: all_gather #3, not finished");
  late.failure.lateness_ns = 900'000;
  CHECK(report({{late}, 0})[1] == "its last operation: all_gather #3, not finished");
  late.failure.lateness_ns = 350'000'000;
  CHECK(report({{late}, 0})[1] ==
        "its last operation: all_gather #3, not finished; it began 0.35 s after the first rank");
  late.host = "n2";
  late.failure.lateness_ns = 61'234'000'000;
  CHECK(report({{late}, 0})[1] ==
        "its last operation: all_gather #3, not finished; it began 61 s after the first rank of its host");
}

TEST_CASE("many ranks are told as ranges") {
  CHECK(ranks_text({3}) == "rank 3");
  CHECK(ranks_text({1, 0}) == "ranks 0, 1");
  CHECK(ranks_text({0, 2, 3, 5, 4}) == "ranks 0, 2 to 5");
  std::vector<RankEnd> ends;
  for (int rank = 0; rank < 1024; ++rank) {
    RankEnd end = ended(rank, 1, {.signal = rank == 7 ? SIGSEGV : SIGTERM});
    end.told_to_stop = rank != 7;
    ends.push_back(end);
  }
  CHECK(report({ends, 0})[0] ==
        "rank 7 (pid 107) was killed by SIGSEGV, 0.00 s after it started; ranks 0 to 6, 8 to 1023 were stopped because "
        "of it");
}

TEST_CASE("a rank that the launcher has killed was killed by nobody else") {
  RankEnd killed = ended(0, 1, {.signal = SIGKILL});
  killed.failure.text = "was killed by SIGKILL (sent by a process; the kernel has killed no process)";
  CHECK(failure_text(killed) == killed.failure.text);
  killed.told_to_stop = killed.killed = true;
  CHECK(failure_text(killed) == "was killed by SIGKILL (by the launcher)");
}

TEST_CASE("of a job that hung the cause is the rank that was waited for") {
  Outcome outcome{{ended(0, 1, {.signal = SIGTERM}), ended(1, 1, {})}, 0};
  outcome.ranks[0].told_to_stop = outcome.ranks[1].told_to_stop = true;
  CHECK(outcome.cause() == nullptr);
  outcome.hang_blamed = 1;
  CHECK(outcome.cause() == nullptr);
  outcome.hang = "no progress for 60 s";
  REQUIRE(outcome.cause() != nullptr);
  CHECK(outcome.cause()->rank == 1);
  outcome.hang_blamed = 5;
  CHECK(outcome.cause() == nullptr);
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

TEST_CASE("the reason of a restart is the first failure, a lost host, a hang, or none of these") {
  RankEnd thrown = ended(1, 1, {.code = 1});
  thrown.error = "the file\nis gone";
  CHECK(restart_reason({{ended(0, 2, {.signal = SIGKILL})}}) == "rank 0 (pid 100) was killed by SIGKILL");
  CHECK(restart_reason({{thrown}}) == "rank 1 (pid 101) exited with code 1: the file is gone");
  thrown.error = std::string(1 << 20, 'x');
  CHECK(restart_reason({{thrown}}).size() == 1000);
  const std::size_t front = std::string("rank 1 (pid 101) exited with code 1: ").size();
  for (std::size_t i = 0; i < 3; ++i) {  // no half character of UTF-8
    std::string euros(i, 'x');
    while (euros.size() < 2000) euros += "\u20ac";
    thrown.error = euros;
    const std::string whole = restart_reason({{thrown}});
    CHECK(whole.size() > 997);
    CHECK((whole.size() - front - i) % 3 == 0);
  }
  Outcome outcome{.ranks = {ended(0, 2, {.code = 1})}, .lost = {{.host = "b", .first_rank = 1, .why = "it is silent"}}};
  CHECK(restart_reason(outcome) == "rank 0 (pid 100) exited with code 1");
  outcome.ranks[0].failure.fault = Fault::consequence;
  CHECK(restart_reason(outcome) == "host b (rank 1) is lost: it is silent");
  CHECK(restart_reason({.ranks = {}, .hang = "rank 1 waits"}) == "the job hung: rank 1 waits");
  CHECK(restart_reason({}) == "other hosts have joined");
}

}  // namespace outcome_test
