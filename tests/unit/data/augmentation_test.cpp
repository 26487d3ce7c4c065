// Datasets that draw random numbers in get_batch().
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/lambda.h>
#include <torch/data/transforms/stack.h>

#include <future>
#include <set>
#include <vector>

#include "lockstep/train/data/distributed_sampler.h"
#include "lockstep/train/data/loader.h"
#include "lockstep/train/data/shard_sampler.h"
#include "tests/support/expect_error.h"

namespace augmentation_test {

using namespace lockstep;

namespace {

at::Tensor default_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

// Sample i is i and random numbers, as many as there are ways to draw them.
struct Noisy {
  std::size_t count = 60;
  std::size_t size() const { return count; }
  at::Tensor get_batch(std::span<const std::int64_t> indices) const {
    const at::Tensor numbers = at::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size()), at::kDouble);
    const at::Tensor noise = at::rand({3, numbers.numel()}, at::kDouble) + at::dropout(at::ones({1}), 0.5, true) +
                             at::randint(100, {1}) + at::randperm(5).index({0});
    return at::cat({numbers.unsqueeze(0), noise});
  }
};

template <class Loader>
std::vector<at::Tensor> pass_of(Loader&& loader) {
  std::vector<at::Tensor> batches;
  for (auto& batch : loader) batches.push_back(batch);
  return batches;
}

bool equal(const std::vector<at::Tensor>& left, const std::vector<at::Tensor>& right) {
  return left.size() == right.size() &&
         std::equal(left.begin(), left.end(), right.begin(),
                    [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); });
}

}  // namespace

TEST_CASE("an augmenting dataset draws the same numbers with 0, 1 and 4 workers, and torch's default none") {
  const Noisy dataset;
  const auto batches = [&](int workers, std::int64_t epoch, std::uint64_t seed = 5) {
    DistributedSampler sampler(60, 2, 1, {.seed = seed});
    sampler.set_epoch(epoch);
    return pass_of(loader(dataset, sampler, {.batch_size = 4, .workers = workers}));
  };
  const at::Tensor before = default_state();
  const auto expected = batches(0, 1);
  CHECK(at::equal(default_state(), before));
  for (const int workers : {0, 1, 4}) CHECK(equal(batches(workers, 1), expected));
  CHECK(at::equal(default_state(), before));
  CHECK_FALSE(equal(batches(1, 2), expected));
  CHECK_FALSE(at::equal(expected[0].slice(0, 1), expected[1].slice(0, 1)));
  at::rand({10});  // what training draws changes nothing
  CHECK(equal(batches(4, 1), expected));
}

TEST_CASE("what training draws does not depend on the dataset") {
  const Noisy dataset;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const auto drawn = [&](int workers) {
    generator.set_current_seed(3);
    DistributedSampler sampler(60, 1, 0);
    std::vector<at::Tensor> masks;
    for (auto& batch : loader(dataset, sampler, {.batch_size = 4, .workers = workers})) {
      masks.push_back(at::dropout(at::ones_like(batch), 0.5, true));
    }
    return masks;
  };
  generator.set_current_seed(3);
  std::vector<at::Tensor> expected;
  for (int i = 0; i < 15; ++i) expected.push_back(at::dropout(at::ones({4, 4}, at::kDouble), 0.5, true));
  for (const int workers : {0, 1, 4}) CHECK(equal(drawn(workers), expected));
}

TEST_CASE("a batch of a shard has the same numbers at any number of ranks") {
  const Noisy dataset;
  const auto step = [&](int ranks) {
    std::vector<at::Tensor> batches;
    for (int rank = 0; rank < ranks; ++rank) {
      ShardSampler sampler(60, ranks, rank, {.shards = 4, .batch_size = 3, .seed = 2});
      sampler.set_epoch(1);
      const auto mine = pass_of(shard_loader(dataset, sampler, {.workers = ranks}));
      batches.insert(batches.end(), mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(sampler.own_shards()));
    }
    return batches;
  };
  const auto expected = step(1);
  for (const int ranks : {2, 4}) CHECK(equal(step(ranks), expected));
}

TEST_CASE("a pass that is repeated draws anew, also in the order of a vector") {
  const Noisy dataset;
  DistributedSampler sampler(60, 1, 0, {.shuffle = false});
  auto range = loader(dataset, sampler, {.batch_size = 20});
  const auto first = pass_of(range), second = pass_of(range);
  CHECK_FALSE(equal(first, second));
  sampler.set_epoch(1);
  sampler.set_epoch(0);
  CHECK(equal(pass_of(range), first));
  const std::vector<std::int64_t> order{4, 5, 6};
  auto listed = loader(dataset, order);
  const auto once = pass_of(listed), again = pass_of(listed);
  CHECK_FALSE(equal(once, again));
  CHECK(equal(pass_of(loader(dataset, order, {.workers = 0})), once));
}

TEST_CASE("transforms of torch::data draw the batch's numbers as well") {
  struct Ones : torch::data::datasets::Dataset<Ones> {
    torch::data::Example<> get(std::size_t) override { return {at::ones({8}), at::rand({1})}; }
    std::optional<std::size_t> size() const override { return 40; }
  };
  auto augmented = Ones()
                       .map(torch::data::transforms::Lambda<torch::data::Example<>>([](torch::data::Example<> example) {
                         return torch::data::Example<>{at::dropout(example.data, 0.5, true), example.target};
                       }))
                       .map(torch::data::transforms::Stack<>());
  const auto batches = [&](int workers) {
    DistributedSampler sampler(40, 1, 0);
    std::vector<at::Tensor> all;
    for (auto& [x, y] : loader(augmented, sampler, {.batch_size = 4, .workers = workers})) {
      all.push_back(at::cat({x, y}, 1));
    }
    return all;
  };
  const at::Tensor before = default_state();
  const auto expected = batches(0);
  for (const int workers : {1, 4}) CHECK(equal(batches(workers), expected));
  CHECK(at::equal(default_state(), before));
}

namespace {

// Draws in a task of torch's pool of threads.
struct Delegating {
  std::size_t size() const { return 1; }
  at::Tensor get_batch(std::span<const std::int64_t>) const {
    std::promise<at::Tensor> drawn;
    at::launch([&] {
      try {
        drawn.set_value(at::rand({1}));
      } catch (...) {
        drawn.set_exception(std::current_exception());
      }
    });
    return drawn.get_future().get();
  }
};

struct OfThread {
  std::size_t size() const { return 1; }
  int get_batch(std::span<const std::int64_t>) const { return at::get_num_threads(); }
};

}  // namespace

TEST_CASE("draws in a task that the dataset starts are refused, and its parallel loops run in its own thread") {
  const std::vector<std::int64_t> order{0};
  for (const int workers : {0, 1}) {
    const Delegating delegating;
    CHECK_ERROR(error_of([&] { pass_of(loader(delegating, order, {.workers = workers})); }),
                ErrorKind::invalid_argument, "batch 0", "aten::uniform_", "a task that it started", "batch_seed()");
    const int threads = at::get_num_threads();
    const OfThread dataset;
    for (const int mine : loader(dataset, order, {.workers = workers})) CHECK(mine == 1);
    CHECK(at::get_num_threads() == threads);
  }
}

TEST_CASE("other generators begin at the batch's seed") {
  struct Seeds {
    std::size_t size() const { return 40; }
    std::uint64_t get_batch(std::span<const std::int64_t>) const { return batch_seed(); }
  };
  const Seeds dataset;
  const auto seeds = [&](int workers) {
    DistributedSampler sampler(40, 1, 0);
    std::vector<std::uint64_t> all;
    for (const auto seed : loader(dataset, sampler, {.batch_size = 4, .workers = workers})) all.push_back(seed);
    return all;
  };
  const auto expected = seeds(0);
  CHECK(seeds(3) == expected);
  CHECK(std::set<std::uint64_t>(expected.begin(), expected.end()).size() == 10);
}

}  // namespace augmentation_test
