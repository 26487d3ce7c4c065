#include "lockstep/train/checkpoint/run_metadata.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "lockstep/base/error.h"
#include "tests/support/expect_error.h"

namespace run_metadata_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

const TrainingPosition kPosition{.step = 40, .epoch = 2, .batch = 7, .loss_sum = 0.1, .samples = 70};

// With what save() adds.
Metadata stored(const TrainingPosition& position, const std::map<std::string, std::string>& choices) {
  Metadata metadata = run_metadata(position, choices);
  metadata.insert({{"step", std::to_string(position.step)}, {"epoch", std::to_string(position.epoch)}});
  return metadata;
}

Error error_with(const Metadata& metadata, const TrainingRunOptions& options = {.directory = "out"}) {
  return error_of([&] { checked_position(metadata, options); });
}

}  // namespace

TEST_CASE("a position comes back, whatever its loss is") {
  for (const double sum : {0.1, 1.0 / 3, -1e300, std::numeric_limits<double>::infinity()}) {
    TrainingPosition position = kPosition;
    position.loss_sum = sum;
    const TrainingPosition found = checked_position(stored(position, {}), {.directory = "out"});
    CHECK(found.loss_sum == sum);
    CHECK(found.step == 40);
    CHECK(found.epoch == 2);
    CHECK(found.batch == 7);
    CHECK(found.samples == 70);
  }
  TrainingPosition diverged = kPosition;
  diverged.loss_sum = std::nan("");
  CHECK(std::isnan(checked_position(stored(diverged, {}), {.directory = "out"}).loss_sum));
}

TEST_CASE("numbers that no run has are refused") {
  for (const auto& [name, value] : std::multimap<std::string, std::string>{{"step", "-4"},
                                                                           {"epoch", "5000000000"},
                                                                           {"batch", "-1"},
                                                                           {"samples", "nan"},
                                                                           {"samples", "9999999999999999"},
                                                                           {"loss_sum", ""},
                                                                           {"loss_sum", "0.1x"}}) {
    Metadata metadata = stored(kPosition, {});
    metadata[name] = value;
    CHECK_ERROR(error_with(metadata), ErrorKind::corrupt_data, "out");
    metadata.erase(name);
    CHECK_ERROR(error_with(metadata), ErrorKind::invalid_argument, "has no '" + name + "', which every TrainingRun");
  }
}

TEST_CASE("choices are compared, and may have the names of other metadata") {
  const std::map<std::string, std::string> choices{{"step", "128"}, {"lr", "0.1"}};
  const Metadata metadata = stored(kPosition, choices);
  CHECK(checked_position(metadata, {.directory = "out", .choices = choices}).step == 40);
  CHECK_ERROR(error_with(metadata, {.directory = "out", .choices = {{"step", "64"}}}), ErrorKind::invalid_argument,
              "made with step = 128, and this run has 64");
  CHECK_ERROR(error_with(metadata, {.directory = "out", .choices = {{"parts", "2"}}}), ErrorKind::invalid_argument,
              "does not record the choice 'parts', which is '2' in this run", "TrainingRunOptions::untold");
  CHECK_ERROR(error_with(metadata, {.directory = "out", .choices = {{"parts", "2"}}, .untold = {{"parts", "1"}}}),
              ErrorKind::invalid_argument, "made with parts = 1, and this run has 2");
  std::map<std::string, std::string> more = choices;
  more["parts"] = "1";
  CHECK(checked_position(metadata, {.directory = "out", .choices = more, .untold = {{"parts", "1"}}}).step == 40);
  CHECK_ERROR(error_with(metadata, {.directory = "out", .choices = {{"step", "128"}}}), ErrorKind::invalid_argument,
              "has the choice 'lr' = '0.1', which this run does not give");
}

}  // namespace run_metadata_test
