#include "lockstep/base/deadline.h"

#include <doctest/doctest.h>

namespace deadline_test {

using namespace lockstep;
using namespace std::chrono_literals;

namespace {
class FakeClock final : public Clock {
 public:
  TimePoint now() const override { return time; }
  TimePoint time{1000s};
};
}  // namespace

TEST_CASE("a deadline expires exactly when its time has come") {
  FakeClock clock;
  const Deadline deadline = Deadline::after(2s, clock);
  CHECK_FALSE(deadline.expired(clock.now()));
  CHECK(deadline.remaining(clock.now()) == 2s);
  clock.time += 2s;
  CHECK(deadline.expired(clock.now()));
  CHECK(deadline.remaining(clock.now()) == 0s);
}

TEST_CASE("never does not overflow and does not expire") {
  FakeClock clock;
  CHECK(Deadline::after(Duration::max(), clock).is_never());
  CHECK_FALSE(Deadline::never().expired(TimePoint::max()));
  CHECK(Deadline::never().poll_timeout_ms() == -1);
  CHECK(Deadline::never().poll_timeout_ms(20) == 20);
}

TEST_CASE("the poll timeout is rounded up, so that a wait never ends early") {
  CHECK(Deadline::after(100us).poll_timeout_ms() == 1);
  CHECK(Deadline::after(-1s).poll_timeout_ms() == 0);
  CHECK(Deadline::after(1h).poll_timeout_ms(50) == 50);
}

}  // namespace deadline_test
