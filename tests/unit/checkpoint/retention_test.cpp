#include "lockstep/train/checkpoint/retention.h"

#include <doctest/doctest.h>

#include <fstream>

#include "lockstep/train/checkpoint/set_directory.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_set.h"
#include "tests/support/temporary_directory.h"

namespace retention_test {

using namespace lockstep;
using namespace lockstep::internal;
using lockstep::testing::part_name;
using lockstep::testing::write_set;

namespace fs = std::filesystem;
using Steps = std::vector<std::uint64_t>;

namespace {

Steps steps_of(const std::vector<fs::path>& sets) {
  Steps steps;
  for (const fs::path& each : sets) steps.push_back(step_of_set(each).value());
  return steps;
}

Steps steps_in(const std::string& directory) {
  Steps steps;
  for (const SetPlace& each : list_sets(directory)) steps.push_back(each.step);
  return steps;
}

// Sets of these steps, whose loss is least at step 30; that of 40 has no loss.
void write_steps(const std::string& directory) {
  for (const std::uint64_t step : {10, 20, 30, 40, 50, 60}) {
    std::map<std::string, double> metrics{
        {"loss", step < 30 ? 60.0 - static_cast<double>(step) : static_cast<double>(step)}};
    if (step == 40) metrics.clear();
    write_set(directory, {.step = step, .metrics = metrics});
  }
}

}  // namespace

TEST_CASE("the last ones stay, and what another rule keeps") {
  const TemporaryDirectory directory;
  write_steps(directory.path());
  const auto pruned = [&](const Retention& rules) { return steps_of(sets_to_prune(directory.path(), rules, {})); };
  CHECK(pruned({}).empty());
  CHECK(pruned({.keep_every = 20, .keep_best = 1, .metric = "loss"}).empty());
  CHECK(pruned({.keep_last = 2}) == Steps{40, 30, 20, 10});
  CHECK(pruned({.keep_last = 9}).empty());
  CHECK(pruned({.keep_last = 1, .keep_every = 20}) == Steps{50, 30, 10});
  CHECK(pruned({.keep_last = 1, .keep_best = 1, .metric = "loss"}) == Steps{50, 40, 20, 10});
  CHECK(pruned({.keep_last = 1, .keep_best = 2, .metric = "loss"}) == Steps{50, 40, 10});
  CHECK(pruned({.keep_last = 1, .keep_best = 2, .metric = "loss", .higher_is_better = true}) == Steps{40, 30, 20, 10});
  CHECK(pruned({.keep_last = 1, .keep_best = 9, .metric = "accuracy"}) == Steps{50, 40, 30, 20, 10});
  CHECK(steps_in(directory.path()).size() == 6);
  CHECK(steps_of(prune_sets(directory.path(), {.keep_last = 2, .keep_every = 20}, {}, Deadline::never())) ==
        Steps{30, 10});
  CHECK(steps_in(directory.path()) == Steps{60, 50, 40, 20});
  CHECK(std::distance(fs::directory_iterator(directory.path()), {}) == 4);
}

TEST_CASE("of sets with the same metric the newer one is the better one") {
  const TemporaryDirectory directory;
  for (const std::uint64_t step : {1, 2, 3}) write_set(directory.path(), {.step = step, .metrics = {{"loss", 1}}});
  write_set(directory.path(), {.step = 4, .metrics = {{"loss", 2}}});
  CHECK(steps_of(sets_to_prune(directory.path(), {.keep_last = 1, .keep_best = 1, .metric = "loss"}, {})) ==
        Steps{2, 1});
}

TEST_CASE("the set just written stays and counts as one of the last, also if its step is not the highest") {
  const TemporaryDirectory directory;
  write_steps(directory.path());
  const fs::path newest = fs::path(directory.path()) / "." / "step-0000000010";  // the same place in other words
  CHECK(steps_of(sets_to_prune(directory.path(), {.keep_last = 2}, newest)) == Steps{50, 40, 30, 20});
  CHECK(steps_of(sets_to_prune(directory.path(), {.keep_last = 1}, newest)) == Steps{60, 50, 40, 30, 20});
}

// fault: 24
TEST_CASE("damaged sets are left alone, and no whole one goes in their favour") {
  const TemporaryDirectory directory;
  write_steps(directory.path());
  std::ofstream(set_path(directory.path(), 60) / "manifest.json") << "{}";
  fs::resize_file(set_path(directory.path(), 50) / part_name(1, 2), 10);
  fs::remove(set_path(directory.path(), 20) / part_name(0, 2));
  CHECK(steps_of(prune_sets(directory.path(), {.keep_last = 1}, {}, Deadline::never())) == Steps{30, 10});
  CHECK(steps_in(directory.path()) == Steps{60, 50, 40, 20});
}

TEST_CASE("the newest set whose every byte is right stays, whatever is newer") {
  const TemporaryDirectory directory;
  for (const std::uint64_t step : {10, 20, 30, 40}) write_set(directory.path(), {.step = step});
  for (const std::uint64_t step : {30, 40}) {
    std::fstream part(set_path(directory.path(), step) / part_name(0, 2),
                      std::ios::in | std::ios::out | std::ios::binary);
    part.seekp(-1, std::ios::end).put('x');  // a size is as it was
  }
  CHECK(steps_of(prune_sets(directory.path(), {.keep_last = 1}, {}, Deadline::never())) == Steps{30, 10});
  CHECK(steps_in(directory.path()) == Steps{40, 20});
  CHECK(steps_of(prune_sets(directory.path(), {.keep_last = 1}, {}, Deadline::never())).empty());
}

TEST_CASE("no set is removed after the deadline, and the next call goes on") {
  const TemporaryDirectory directory;
  write_steps(directory.path());
  CHECK(prune_sets(directory.path(), {.keep_last = 2}, {}, Deadline::after(Duration(0))).empty());
  CHECK(steps_in(directory.path()).size() == 6);
  CHECK(prune_sets(directory.path(), {.keep_last = 2}, {}, Deadline::never()).size() == 4);
}

TEST_CASE("rules that mean nothing are refused") {
  CHECK_ERROR(error_of([] { check(Retention{.keep_last = -1}); }), ErrorKind::invalid_argument, "keep_last is -1");
  CHECK_ERROR(error_of([] { check(Retention{.keep_last = 1, .keep_best = -2, .metric = "x"}); }),
              ErrorKind::invalid_argument, "keep_best is -2");
  CHECK_ERROR(error_of([] { check(Retention{.keep_last = 1, .keep_best = 2}); }), ErrorKind::invalid_argument,
              "needs a metric");
  CHECK_ERROR(error_of([] { sets_to_prune("/no/such/directory", {.keep_last = 1}, {}); }), ErrorKind::invalid_argument,
              "/no/such/directory");
}

}  // namespace retention_test
