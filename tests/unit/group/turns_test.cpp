// Whose turn it is among the calls of a group.
#include "lockstep/comm/group/turns.h"

#include <doctest/doctest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <latch>
#include <thread>
#include <vector>

#include "lockstep/base/deadline.h"
#include "tests/support/expect_error.h"
#include "tests/support/sanitized.h"

namespace turns_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

Deadline soon() { return Deadline::after(20s); }
Deadline at_once() { return Deadline::after(0s); }

// While it lives, no thread can be started: there is no room for its stack.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t huge;
    REQUIRE(::pthread_getattr_default_np(&before_) == 0);
    REQUIRE(::pthread_getattr_default_np(&huge) == 0);
    REQUIRE(::pthread_attr_setstacksize(&huge, std::size_t{1} << 47) == 0);
    REQUIRE(::pthread_setattr_default_np(&huge) == 0);
    ::pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace

TEST_CASE("calls have their turns in the order in which they lined up") {
  Turns turns([] {});
  REQUIRE(turns.take(soon()));
  std::array<Turns::Place, 3> places;
  for (Turns::Place& each : places) turns.line_up(each, soon());
  std::vector<std::size_t> order;
  std::vector<std::jthread> threads;
  for (std::size_t i = places.size(); i-- != 0;) {
    threads.emplace_back([&, i] {
      REQUIRE(turns.await(places[i]));
      order.push_back(i);
      turns.leave();
    });
  }
  CHECK(order.empty());
  turns.leave();
  threads.clear();
  CHECK(order == std::vector<std::size_t>{0, 1, 2});
  CHECK_FALSE(turns.is_taken());
}

TEST_CASE("to line up is not to wait, and where nobody is in front it is to have the turn") {
  Turns turns([] {});
  Turns::Place first, second;
  turns.line_up(first, soon());
  turns.line_up(second, soon());
  CHECK(turns.await(first));
  CHECK_FALSE(turns.take(at_once()));  // behind both
  turns.leave();
  CHECK(turns.await(second));
  turns.leave();
  CHECK_FALSE(turns.is_taken());
  CHECK(turns.take(at_once()));
  turns.leave();
}

TEST_CASE("a call for which no thread can be started is not in line, and the others are served") {
  if (testing::kIsSanitized) return;  // sanitizers end the process then
  Turns turns([] {});
  REQUIRE(turns.take(soon()));
  Turns::Place refused, next;
  {
    const NoThreads none;
    CHECK_ERROR(error_of([&] { turns.line_up(refused, soon()); }), ErrorKind::internal, "cannot start the thread",
                "raise the limit on processes");
  }
  turns.line_up(next, soon());
  turns.leave();
  CHECK(turns.await(next));
  turns.leave();
  CHECK_FALSE(turns.is_taken());
}

TEST_CASE("a call that is late gives up its place, and those behind it move up") {
  Turns turns([] { FAIL_CHECK("it was waited for"); });
  REQUIRE(turns.take(soon()));
  std::latch in_line(1);
  Turns::Place behind;
  std::jthread late([&] {
    in_line.count_down();
    CHECK_FALSE(turns.take(Deadline::after(1ms)));
  });
  in_line.wait();
  late.join();
  turns.line_up(behind, Deadline::never());
  CHECK_FALSE(turns.take(at_once()));
  turns.leave();
  CHECK(turns.await(behind));
  turns.leave();
}

TEST_CASE("a place that nobody waits at is given up at its deadline, too") {
  std::atomic<int> told{0};
  Turns turns([&] { ++told; });
  REQUIRE(turns.take(Deadline::never()));
  Turns::Place patient, hasty, behind;
  turns.line_up(patient, soon());
  turns.line_up(hasty, Deadline::after(1ms));
  turns.line_up(behind, soon());
  CHECK_FALSE(turns.await(hasty));  // while the first still has its turn
  turns.leave();
  CHECK(turns.await(patient));
  turns.leave();
  CHECK(turns.await(behind));
  turns.line_up(hasty, at_once());  // the same place again
  turns.line_up(patient, at_once());
  CHECK_FALSE(turns.await(patient));
  CHECK_FALSE(turns.await(hasty));
  turns.leave();
  while (told < 2) std::this_thread::yield();
}

// fault: 54
TEST_CASE("many threads never have a turn at once, and none is forgotten") {
  constexpr int kThreads = 6, kCalls = 2000;
  Turns turns([] {});
  long sum = 0;  // protected by the turn
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      Turns::Place place;
      for (int i = 0; i < kCalls; ++i) {
        if ((thread + i) % 3 == 0) {
          turns.line_up(place, soon());
          CHECK(turns.await(place));
        } else {
          CHECK(turns.take(soon()));
        }
        ++sum;
        turns.leave();
      }
    });
  }
  threads.clear();
  CHECK(sum == kThreads * kCalls);
  CHECK_FALSE(turns.is_taken());
}

}  // namespace turns_test
