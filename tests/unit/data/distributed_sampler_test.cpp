#include "lockstep/train/data/distributed_sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "lockstep/train/data/loader_inputs.h"
#include "tests/support/command.h"
#include "tests/support/expect_error.h"
#include "tests/support/standard_error_of.h"

namespace distributed_sampler_test {

using namespace lockstep;
using namespace lockstep::testing;

static_assert(IndexSampler<DistributedSampler>);
static_assert(IndexSampler<std::vector<std::int64_t>>);
static_assert(!IndexSampler<int>);

namespace {

using Indices = std::vector<std::int64_t>;

Indices one_pass(DistributedSampler& sampler) {
  const Indices indices(sampler.begin(), sampler.end());
  CHECK(indices.size() == sampler.size());
  return indices;
}

Indices indices_of(std::size_t size, int replicas, int rank, const SamplerOptions& options, std::int64_t epoch = 0) {
  DistributedSampler sampler(size, replicas, rank, options);
  sampler.set_epoch(epoch);
  return one_pass(sampler);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

struct Group {
  int rank() const { return 2; }
  int size() const { return 3; }
};

}  // namespace

// feature: F-02, F-03, Z-01
TEST_CASE("in order, padded and cut") {
  const SamplerOptions ordered{.shuffle = false};
  CHECK(indices_of(10, 3, 0, ordered) == Indices{0, 3, 6, 9});
  CHECK(indices_of(10, 3, 1, ordered) == Indices{1, 4, 7, 0});
  CHECK(indices_of(10, 3, 2, ordered) == Indices{2, 5, 8, 1});
  const SamplerOptions cut{.shuffle = false, .drop_last = true};
  CHECK(indices_of(10, 3, 0, cut) == Indices{0, 3, 6});
  CHECK(indices_of(10, 3, 1, cut) == Indices{1, 4, 7});
  CHECK(indices_of(10, 3, 2, cut) == Indices{2, 5, 8});
}

// feature: F-05
TEST_CASE("more replicas than samples, and no samples") {
  const Indices padded = {0, 1, 0, 1, 0};
  for (int rank = 0; rank < 5; ++rank) {
    CHECK(indices_of(2, 5, rank, {.shuffle = false}) == Indices{padded[static_cast<std::size_t>(rank)]});
    CHECK(indices_of(2, 5, rank, {.shuffle = false, .drop_last = true}).empty());
    CHECK(indices_of(0, 5, rank, {}).empty());
    CHECK(indices_of(0, 5, rank, {.drop_last = true}).empty());
  }
}

// feature: F-07, F-08
TEST_CASE("the shuffled order follows from seed and epoch, as in PyTorch") {
  CHECK(indices_of(10, 1, 0, {}, 0) == Indices{4, 1, 7, 5, 3, 9, 0, 8, 6, 2});
  CHECK(indices_of(10, 1, 0, {}, 1) == Indices{5, 6, 1, 2, 0, 8, 9, 3, 7, 4});
  CHECK(indices_of(10, 3, 0, {}, 0) == Indices{4, 5, 0, 2});
  CHECK(indices_of(10, 3, 1, {}, 0) == Indices{1, 3, 8, 4});
  CHECK(indices_of(10, 3, 2, {}, 0) == Indices{7, 9, 6, 1});
  CHECK(indices_of(10, 3, 0, {}, 1) == Indices{5, 2, 9, 4});
  CHECK(indices_of(10, 3, 1, {}, 1) == Indices{6, 0, 3, 5});
  CHECK(indices_of(10, 3, 2, {}, 1) == Indices{1, 8, 7, 6});
  CHECK(indices_of(10, 3, 0, {.seed = 42}, 3) == Indices{7, 3, 0, 1});
}

// feature: F-07
TEST_CASE("PyTorch's own sampler gives the same indices, case by case") {
  const CommandResult oracle = run_command({LOCKSTEP_PYTHON, LOCKSTEP_SAMPLER_ORACLE});
  REQUIRE(oracle.exit_code == 0);
  std::istringstream lines(oracle.output);
  std::size_t cases = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    const std::size_t colon = line.find(':');
    REQUIRE(colon != std::string::npos);
    std::istringstream head(line.substr(0, colon));
    std::istringstream tail(line.substr(colon + 1));
    std::size_t size = 0;
    int replicas = 0, rank = 0;
    std::int64_t epoch = 0;
    SamplerOptions options;
    head >> size >> replicas >> rank >> options.seed >> epoch >> options.shuffle >> options.drop_last;
    REQUIRE(head);
    const Indices expected{std::istream_iterator<std::int64_t>(tail), {}};
    CAPTURE(line.substr(0, colon));
    REQUIRE(indices_of(size, replicas, rank, options, epoch) == expected);
  }
  CHECK(cases > 3000);
}

// feature: F-06
TEST_CASE("for evaluation, counting each sample once gives the single process's accuracy") {
  const auto is_right = [](std::int64_t index) { return index % 3 == 0; };
  std::int64_t right = 0, seen = 0;
  for (int rank = 0; rank < 3; ++rank) {
    DistributedSampler exact(10, 3, rank, {.shuffle = false, .padding = Padding::none});
    right += std::count_if(exact.begin(), exact.end(), is_right);
    seen += static_cast<std::int64_t>(exact.size());
  }
  CHECK(right == 4);
  CHECK(seen == 10);
  right = seen = 0;
  for (int rank = 0; rank < 3; ++rank) {
    DistributedSampler padded(10, 3, rank, {.seed = 5});
    const auto own = padded.indices().first(padded.unique_size());
    right += std::count_if(own.begin(), own.end(), is_right);
    seen += static_cast<std::int64_t>(own.size());
  }
  CHECK(right == 4);
  CHECK(seen == 10);
}

// feature: F-07
TEST_CASE("an epoch repeated without set_epoch is reported once") {
  DistributedSampler sampler(10, 2, 0);
  const std::string first = standard_error_of([&] { one_pass(sampler); });
  CHECK(first.empty());
  const std::string repeated = standard_error_of([&] {
    one_pass(sampler);
    one_pass(sampler);
  });

  CHECK(count(repeated, "\n") == 1);
  CHECK(contains(repeated, "epoch 0 again"));
  CHECK(contains(repeated, "set_epoch"));
}

// feature: F-19
TEST_CASE("set_epoch before each pass, or no shuffling, is no repetition") {
  const std::string text = standard_error_of([] {
    DistributedSampler shuffled(10, 2, 0);
    for (int epoch = 0; epoch < 3; ++epoch) {
      shuffled.set_epoch(epoch);
      one_pass(shuffled);
    }
    DistributedSampler ordered(10, 2, 0, {.shuffle = false});
    const Indices first = one_pass(ordered);
    ordered.set_epoch(1);
    CHECK(one_pass(ordered) == first);
    CHECK(one_pass(ordered) == first);
  });
  CHECK(text.empty());
}

// feature: F-01
TEST_CASE("rank and size may come from a group; a wrong rank is refused") {
  DistributedSampler sampler(10, Group(), {.shuffle = false});
  CHECK(one_pass(sampler) == Indices{2, 5, 8, 1});
  CHECK_ERROR(error_of([] { DistributedSampler(10, 4, 4); }), ErrorKind::invalid_argument, "rank 4", "[0, 3]");
}

}  // namespace distributed_sampler_test
