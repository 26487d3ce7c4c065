// The handle of a call that was started.
#include "lockstep/comm/group/work.h"

#include <doctest/doctest.h>

#include <atomic>
#include <exception>
#include <thread>

#include "lockstep/comm/group/work_control.h"
#include "tests/support/expect_error.h"

namespace work_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

TEST_CASE("a Work that was made by default says so, whatever it is asked") {
  const Work none;
  const auto refused = [](auto&& call) {
    CHECK_ERROR(error_of(call), ErrorKind::invalid_argument, "refers to no operation");
  };
  refused([&] { none.wait(); });
  refused([&] { none.wait(Deadline::after(1ms)); });
  refused([&] { none.wait(1ms); });
  refused([&] { static_cast<void>(none.is_completed()); });
  refused([&] { static_cast<void>(none.exception()); });
  refused([&] { static_cast<void>(none.source()); });
  CHECK_FALSE(WorkControl::renew(none));
}

// feature: C-16
TEST_CASE("a Work ends once, for all copies and in all threads") {
  const Work work = WorkControl::start();
  const Work copy = work;
  CHECK_FALSE(copy.is_completed());
  CHECK_ERROR(error_of([&] { copy.wait(Deadline::after(1ms)); }), ErrorKind::timeout,
              "has not finished and continues in the background");
  CHECK_ERROR(error_of([&] { copy.wait(0s); }), ErrorKind::timeout, "has not finished and continues in the background");
  std::jthread waits([&] { copy.wait(); });
  WorkControl::complete(work, nullptr, 3);
  waits.join();
  CHECK(copy.is_completed());
  CHECK(copy.source() == 3);
  CHECK_FALSE(copy.exception());
}

TEST_CASE("each thread that waits joins what is left of an operation, unless that has failed") {
  std::atomic<int> joined = 0;
  const Work work = WorkControl::start();
  std::jthread waits([&] { work.wait(); });
  WorkControl::complete(work, nullptr, -1, [&] { ++joined; });
  waits.join();
  work.wait();
  CHECK(joined == 2);
  CHECK(WorkControl::renew(work));
  WorkControl::complete(work, std::make_exception_ptr(Error(ErrorKind::aborted, "over")), -1, [&] { ++joined; });
  CHECK_ERROR(error_of([&] { work.wait(); }), ErrorKind::aborted, "over");
  CHECK(WorkControl::renew(work));
  WorkControl::complete(work, nullptr);
  work.wait();
  CHECK(joined == 2);
}

}  // namespace work_test
