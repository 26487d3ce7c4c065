// The handle of a call that was started.
#include "lockstep/comm/group/work.h"

#include <doctest/doctest.h>

#include <thread>

#include "tests/support/expect_error.h"

namespace work_test {

using namespace lockstep;
using namespace std::chrono_literals;

TEST_CASE("a Work that was made by default says so, whatever it is asked") {
  const Work none;
  const auto refused = [](auto&& call) {
    CHECK_ERROR(error_of(call), ErrorKind::invalid_argument, "refers to no operation");
  };
  refused([&] { none.wait(); });
  refused([&] { none.wait(Deadline::after(1ms)); });
  refused([&] { static_cast<void>(none.is_completed()); });
  refused([&] { static_cast<void>(none.exception()); });
  refused([&] { static_cast<void>(none.source()); });
  CHECK_FALSE(none.renew());
}

// feature: C-16
TEST_CASE("a Work ends once, for all copies and in all threads") {
  const Work work = Work::start();
  const Work copy = work;
  CHECK_FALSE(copy.is_completed());
  CHECK_ERROR(error_of([&] { copy.wait(Deadline::after(1ms)); }), ErrorKind::timeout,
              "has not finished, and continues");
  std::jthread waits([&] { copy.wait(); });
  work.complete(nullptr, 3);
  waits.join();
  CHECK(copy.is_completed());
  CHECK(copy.source() == 3);
  CHECK_FALSE(copy.exception());
}

}  // namespace work_test
