#include "lockstep/train/data/loader.h"

#include <doctest/doctest.h>

#include <latch>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>

#include "tests/support/expect_error.h"

namespace loader_test {

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

using Indices = std::vector<std::int64_t>;

struct Pair {
  Indices x;
  int y;
};

// A batch of this dataset is its list of indices, and how many they are.
struct EchoDataset {
  std::size_t samples = 100;
  std::size_t size() const { return samples; }
  Pair get_batch(std::span<const std::int64_t> indices) const {
    return {Indices(indices.begin(), indices.end()), static_cast<int>(indices.size())};
  }
};

Indices reversed(std::int64_t count) {
  Indices order(static_cast<std::size_t>(count));
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

std::vector<Indices> batches_of(const Indices& order, const LoaderOptions& options) {
  const EchoDataset dataset;
  std::vector<Indices> batches;
  auto range = loader(dataset, order, options);
  const std::size_t announced = range.size();
  for (auto& [x, y] : range) {
    REQUIRE(static_cast<std::size_t>(y) == x.size());
    batches.push_back(std::move(x));
  }
  REQUIRE(batches.size() == announced);
  return batches;
}

struct PositionedSampler {
  Indices indices;
  std::shared_ptr<SamplerPosition> at = std::make_shared<SamplerPosition>();
  auto begin() const { return indices.begin(); }
  auto end() const { return indices.end(); }
  std::size_t size() const { return indices.size(); }
  std::shared_ptr<SamplerPosition> position() const { return at; }
};

struct FailingDataset {
  std::size_t size() const { return 100; }
  Pair get_batch(std::span<const std::int64_t> indices) const {
    if (indices.front() == 20) throw std::out_of_range("no sample 20");
    if (indices.front() == 70) throw Error(ErrorKind::corrupt_data, "sample 70 is damaged");
    return {};
  }
};

}  // namespace

// feature: F-16
TEST_CASE("batches follow the sampler's order, with 0, 1 and 4 workers alike") {
  const Indices order = reversed(50);
  const auto expected = batches_of(order, {.batch_size = 8, .workers = 0});
  REQUIRE(expected.size() == 7);
  CHECK(expected[0] == Indices{49, 48, 47, 46, 45, 44, 43, 42});
  CHECK(expected[6] == Indices{1, 0});
  for (const int workers : {1, 2, 4}) {
    for (const int prefetch : {1, 3}) {
      CHECK(batches_of(order, {.batch_size = 8, .workers = workers, .prefetch = prefetch}) == expected);
    }
  }
}

template <class Options>
concept CanShuffle = requires(Options options) { options.shuffle; };

// feature: F-11
TEST_CASE("order is the sampler's affair: a loader cannot be told to shuffle") {
  CHECK_FALSE(CanShuffle<LoaderOptions>);
  CHECK(batches_of(reversed(4), {.batch_size = 4, .workers = 2}) == std::vector<Indices>{{3, 2, 1, 0}});
}

TEST_CASE("a last batch that is not full is yielded, or dropped") {
  CHECK(batches_of(reversed(9), {.batch_size = 4}).size() == 3);
  CHECK(batches_of(reversed(9), {.batch_size = 4, .drop_last = true}).size() == 2);
  CHECK(batches_of(reversed(8), {.batch_size = 4, .drop_last = true}).size() == 2);
  CHECK(batches_of(reversed(3), {.batch_size = 4, .drop_last = true}).empty());
  CHECK(batches_of({}, {.batch_size = 4}).empty());
}

TEST_CASE("a run resumed in mid-epoch sees the batches that were left") {
  const auto all = batches_of(reversed(30), {.batch_size = 4});
  for (std::int64_t first = 0; first <= std::ssize(all); ++first) {
    const std::vector<Indices> left(all.begin() + first, all.end());
    CHECK(batches_of(reversed(30), {.batch_size = 4, .first_batch = first}) == left);
  }
  CHECK_ERROR(error_of([] { batches_of(reversed(30), {.batch_size = 4, .first_batch = 9}); }),
              ErrorKind::invalid_argument, "first_batch is 9", "8 batches of 4");
  CHECK_ERROR(error_of([] { batches_of(reversed(30), {.batch_size = 4, .first_batch = -1}); }),
              ErrorKind::invalid_argument, "first_batch is -1");
}

TEST_CASE("a failure names the batch and keeps kind and cause") {
  const FailingDataset dataset;
  for (const int workers : {0, 1, 4}) {
    const auto fail_at = [&](std::int64_t index, int batches_before) {
      Indices order(100);
      std::iota(order.begin(), order.end(), 0);
      order[10] = index;
      int seen = 0;
      const Error error = error_of([&] {
        for (auto& batch : loader(dataset, order, {.batch_size = 10, .workers = workers})) {
          static_cast<void>(batch);
          ++seen;
        }
      });
      CHECK(seen == batches_before);
      return error;
    };
    CHECK_ERROR(fail_at(20, 1), ErrorKind::internal, "batch 1", "positions 10 to 19", "between 11 and 20",
                "no sample 20");
    CHECK_ERROR(fail_at(70, 1), ErrorKind::corrupt_data, "batch 1", "between 11 and 70", "sample 70 is damaged");
  }
}

TEST_CASE("the original exception is nested inside") {
  const FailingDataset dataset;
  const Indices order = {20};
  try {
    loader(dataset, order).begin();
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK_THROWS_AS(std::rethrow_if_nested(error), std::out_of_range);
  }
}

TEST_CASE("leaving the loop early, with the workers ahead or still busy, does not hang") {
  const EchoDataset dataset{.samples = 10'000};
  const Indices order = reversed(10'000);
  for (int round = 0; round < 50; ++round) {
    int seen = 0;
    for (auto& batch : loader(dataset, order, {.batch_size = 1, .workers = 4})) {
      static_cast<void>(batch);
      if (++seen == round) break;
    }
  }
}

TEST_CASE("an exception in the loop's body stops the workers too") {
  const EchoDataset dataset;
  const Indices order = reversed(100);
  const auto iterate = [&] {
    for (auto& batch : loader(dataset, order, {.batch_size = 1, .workers = 4})) {
      if (batch.y == 1) throw std::runtime_error("loss is not finite");
    }
  };
  CHECK_THROWS_AS(iterate(), std::runtime_error);
}

// feature: F-16
TEST_CASE("500 short epochs with 4 workers end") {
  const EchoDataset dataset;
  const Indices order = reversed(7);
  auto range = loader(dataset, order, {.batch_size = 2, .workers = 4});
  std::size_t seen = 0;
  for (int epoch = 0; epoch < 500; ++epoch) {
    for (auto& batch : range) seen += batch.x.size();
  }
  CHECK(seen == 500 * 7);
}

TEST_CASE("a stuck dataset is a timeout, not a hang") {
  struct StuckDataset {
    std::latch& gate;
    std::size_t size() const { return 2; }
    Pair get_batch(std::span<const std::int64_t> indices) const {
      if (indices.front() == 1) gate.wait();
      return {};
    }
  };
  std::latch gate(1);
  const StuckDataset dataset{gate};
  const Indices order = {0, 1};
  auto range = loader(dataset, order, {.batch_size = 1, .workers = 1, .timeout = 50ms});
  auto iterator = range.begin();
  CHECK_ERROR(error_of([&] { ++iterator; }), ErrorKind::timeout, "batch 1 of the 2", "get_batch() is stuck");
  gate.count_down();
}

// feature: F-15
TEST_CASE("options and samplers that make no sense are refused") {
  const EchoDataset dataset{.samples = 5};
  const Indices order = {0, 1, 5};
  CHECK_ERROR(error_of([&] { loader(dataset, order).begin(); }), ErrorKind::invalid_argument, "index 5", "position 2",
              "5 samples", "another dataset");
  const Indices negative = {0, -1};
  CHECK_ERROR(error_of([&] { loader(dataset, negative).begin(); }), ErrorKind::invalid_argument, "index -1");
  CHECK_ERROR(error_of([&] { loader(dataset, order, {.batch_size = 0}); }), ErrorKind::invalid_argument, "batch_size");
  CHECK_ERROR(error_of([&] { loader(dataset, order, {.workers = -1}); }), ErrorKind::invalid_argument, "workers is -1");
  CHECK_ERROR(error_of([&] { loader(dataset, order, {.prefetch = 0}); }), ErrorKind::invalid_argument, "prefetch is 0");

  struct LyingSampler {
    Indices indices = {0, 1, 2};
    auto begin() const { return indices.begin(); }
    auto end() const { return indices.end(); }
    std::size_t size() const { return 2; }
  };
  const LyingSampler sampler;
  CHECK_ERROR(error_of([&] { loader(dataset, sampler).begin(); }), ErrorKind::invalid_argument,
              "the size() of the sampler is 2", "yields 3");
}

TEST_CASE("a pass that is told to stop ends before the next batch, and what was not given is not taken") {
  const EchoDataset dataset{.samples = 10};
  for (const int workers : {0, 2}) {
    PositionedSampler sampler{.indices = reversed(10)};
    int asked = 0;
    const auto range =
        loader(dataset, sampler, {.batch_size = 3, .workers = workers, .stop_when = [&] { return ++asked == 2; }});
    int batches = 0;
    for ([[maybe_unused]] auto& batch : range) ++batches;
    CHECK(batches == 2);
    CHECK(asked == 2);
    CHECK(sampler.at->taken == 6);
    asked = 10;
    for ([[maybe_unused]] auto& batch : range) ++batches;
    CHECK(batches == 2 + 4);
    CHECK(asked == 10 + 3);  // neither for the first batch nor at the end
    CHECK(sampler.at->taken == 10);
  }
}

}  // namespace loader_test
