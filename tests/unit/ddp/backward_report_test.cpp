// What ranks tell each other of their backwards, and what none of them can have told.
#include "lockstep/train/ddp/backward_report.h"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "tests/support/expect_error.h"

namespace backward_report_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr std::size_t kParameters = 11;

// Both ranks tell of 11 parameters.
JointReport joined(const BackwardReport& first, const BackwardReport& second) {
  const std::size_t length = report_bytes(kParameters);
  std::vector<std::uint8_t> told(2 * length);
  const std::span<std::uint8_t> both(told);
  encode_report(first, both.first(length));
  encode_report(second, both.subspan(length));
  JointReport joint;
  join_reports(told, kParameters, kParameters, joint);
  return joint;
}

BackwardReport report(double weight, std::optional<std::size_t> non_finite = {}) {
  return {.weight = weight, .non_finite = non_finite, .used = std::vector<bool>(kParameters)};
}

}  // namespace

TEST_CASE("reports are joined in rank order") {
  BackwardReport first = report(3, 10), second = report(0.5);
  first.used[0] = second.used[8] = true;
  const JointReport joint = joined(first, second);
  CHECK(joint.weight == 3.5);
  CHECK(joint.non_finite == std::vector<std::pair<int, std::size_t>>{{0, 10}});
  for (std::size_t i = 0; i < kParameters; ++i) CHECK(joint.used[i] == (i == 0 || i == 8));
}

TEST_CASE("one rank's uneven weights count for all, and of averages that are not finite the first is told") {
  BackwardReport first = report(1, 7), second = report(1, 5);
  CHECK(joined(first, second).is_uniform);
  second.is_uniform = false;
  first.is_of_average = second.is_of_average = true;
  const JointReport joint = joined(first, second);
  CHECK_FALSE(joint.is_uniform);
  CHECK(joint.non_finite.empty());
  CHECK(joint.average == 5);
}

TEST_CASE("a parameter that does not exist, or an invalid weight, names its rank") {
  for (const std::size_t index : {kParameters, std::size_t{1} << 40, ~std::size_t{1}}) {
    const Error error = error_of([&] { joined(report(1), report(1, index)); });
    CHECK_ERROR(error, ErrorKind::corrupt_data, "rank 1's report on its backward: the number of a parameter is");
    CHECK(error.detail().peer == 1);
  }
  for (const double weight :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    CHECK_ERROR(error_of([&] { joined(report(weight), report(1)); }), ErrorKind::corrupt_data, "rank 0's report",
                "weight");
  }
}

}  // namespace backward_report_test
