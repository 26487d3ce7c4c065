#include "lockstep/job/launch/reaper.h"

#include <doctest/doctest.h>
#include <unistd.h>

namespace reaper_test {

using namespace lockstep::internal;

// fault: 9
TEST_CASE("what kills the launcher's group does not reach the reaper, from its first moment on") {
  for (int i = 0; i < 100; ++i) {
    const Reaper reaper("a job");
    CHECK(::getsid(reaper.pid()) == reaper.pid());
    CHECK(::getpgid(reaper.pid()) == reaper.pid());
  }
}

}  // namespace reaper_test
