#include "lockstep/job/elastic/own_request.h"

#include <doctest/doctest.h>

#include <csignal>

#include "lockstep/job/launch/exit_codes.h"

namespace own_request_test {

using namespace lockstep;
using namespace lockstep::internal;
using std::chrono::milliseconds;

namespace {

struct Host {
  explicit Host(int most) {
    options.machine.most = most;
    options.machine.stop_exit_code = 75;
  }
  AgentOptions options;
  OwnRequest request{options};
  TimePoint at(milliseconds after) const { return TimePoint(std::chrono::hours(1)) + after; }
};

}  // namespace

TEST_CASE("a host whose user asks again without ranks ends without the others, unless it is the same request") {
  Host host(1);
  host.request.hear(SIGTERM, host.at(milliseconds(0)));
  host.request.insist_without_ranks(SIGTERM, host.at(milliseconds(999)));
  CHECK_FALSE(host.request.ends_alone());
  host.request.insist_without_ranks(SIGTERM, host.at(milliseconds(1000)));
  CHECK(host.request.ends_alone());
  CHECK(host.request.exit_code() == 75);
}

TEST_CASE("an interrupt after SIGTERM for one host of an elastic job is the first request to stop the job") {
  Host host(2);
  host.request.hear(SIGTERM, host.at(milliseconds(0)));
  CHECK(host.request.exit_code() == kLeftExitCode);
  host.request.insist_without_ranks(SIGINT, host.at(milliseconds(2000)));
  CHECK_FALSE(host.request.ends_alone());
  CHECK(host.request.exit_code() == 75);
  host.request.insist_without_ranks(SIGINT, host.at(milliseconds(4000)));
  CHECK(host.request.ends_alone());
}

}  // namespace own_request_test
