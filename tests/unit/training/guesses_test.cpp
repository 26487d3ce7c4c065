// The calls that a newcomer guesses, on one rank: they compile and do what their names say. Those that remain free
// functions, and why, are in docs/ARCHITECTURE.md.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/store/memory_store.h"
#include "lockstep/lockstep.h"
#include "tests/support/expect_error.h"

namespace guesses_test {

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

World world_of_one() {
  return init_process_group({.rank = 0, .world_size = 1, .store = std::make_shared<MemoryStore>()});
}

// A dataset of torch::data, whose size() is optional.
struct Stream : torch::data::datasets::Dataset<Stream> {
  torch::data::Example<> get(std::size_t index) override {
    return {at::full({2}, static_cast<std::int64_t>(index), at::kFloat), at::zeros({1})};
  }
  std::optional<std::size_t> size() const override { return known ? std::optional<std::size_t>(4) : std::nullopt; }

  bool known = true;
};

}  // namespace

TEST_CASE("options without an operation or a root, on every collective that has one") {
  const World world = world_of_one();
  const at::Tensor t = at::ones({2}), part = at::zeros({2});
  world.all_reduce(t, {.timeout = 10s});
  world.all_reduce({t, part}, {.timeout = 10s});
  world.scan(t, {.timeout = 10s});
  world.reduce(t, {.timeout = 10s});
  world.reduce(t, 0, {.timeout = 10s});
  world.broadcast(t, {.timeout = 10s});
  CHECK(world.gather(t, {.timeout = 10s}).size() == 1);
  world.gather_into(part, t, {.timeout = 10s});
  world.scatter(part, t, {.timeout = 10s});
  world.reduce_scatter(part, t, {.timeout = 10s});
  world.all_to_all(part, t, {.timeout = 10s});
  world.barrier({.timeout = 10s});
  world.reduce_scatter_coalesced(part, t, {.timeout = 10s});
  world.all_to_all_single(part, t, {.timeout = 10s});
  CHECK(at::equal(part, at::ones({2})));
  world.exclusive_scan(t, {.timeout = 10s});
  CHECK(at::equal(t, at::zeros({2})));
  double loss = 3;
  world.all_reduce(loss, {.timeout = 10s});
  CHECK(loss == 3);
  CHECK(world.broadcast_object(std::string("name"), {.timeout = 10s}) == "name");
  CHECK(world.gather_object(7, {.timeout = 10s}) == std::vector<int>{7});
  CHECK(world.scatter_object(std::vector<int>{8}, {.timeout = 10s}) == 8);
}

TEST_CASE("asynchronous calls take the same options, and a Work waits for a duration") {
  const World world = world_of_one();
  const at::Tensor t = at::ones({2}), part = at::zeros({2});
  const Work work = world.all_reduce_async(t);
  work.wait(10s);
  work.wait(Deadline::after(10s));
  for (const Work& other :
       {world.all_reduce_async(t, {.timeout = 10s}), world.scan_async(t, {.timeout = 10s}),
        world.reduce_async(t, {.timeout = 10s}), world.reduce_async(t, 0, {.timeout = 10s}),
        world.broadcast_async(t, {.timeout = 10s}), world.gather_into_async(part, t, {.timeout = 10s}),
        world.scatter_async(part, t, {.timeout = 10s}), world.reduce_scatter_async(part, t, {.timeout = 10s}),
        world.exclusive_scan_async(t, {.timeout = 10s}), world.barrier_async({.timeout = 10s})}) {
    other.wait(10s);
    CHECK(other.is_completed());
  }
}

TEST_CASE("collectives are members, of tensors as of numbers and objects") {
  const World world = world_of_one();
  const at::Tensor t = at::ones({2, 3});
  world.all_reduce(t, ReduceOp::max);
  CHECK(world.all_gather(t).size() == 1);
  CHECK(world.all_gather_v(t).size() == 1);
  CHECK(world.all_gather_coalesced({t, t}).at(0).size() == 2);
  CHECK(at::equal(world.all_reduce_sparse(t.to_sparse()).to_dense(), t));
  world.all_reduce_premul_sum(t, 0.5);
  CHECK(world.weighted_mean(2, 3) == 2);
  CHECK(world.all_gather_object(std::string("me")) == std::vector<std::string>{"me"});
  CHECK_FALSE(world.first_difference("the same"));
  CHECK(world.batch_isend_irecv({}).empty());
  CHECK(world.split(0)->size() == 1);
  CHECK(world.new_group({0}, {.timeout = 10s})->timeout() == 10s);
  CHECK(world.is_main_rank());
  CHECK(world.local_rank() == 0);
  seed_all(1, world);
  log_rank0(world, "%d rank", world.size());
  CHECK(main_rank_first(world, [] { return 5; }) == 5);
}

TEST_CASE("a sampler takes the dataset, or its size, also as torch::data has it") {
  const World world = world_of_one();
  Stream dataset;
  CHECK(DistributedSampler(dataset.size(), world).size() == 4);
  CHECK(DistributedSampler(dataset, world, {.shuffle = false}).size() == 4);
  CHECK(DistributedSampler(4, world).size() == 4);
  CHECK(DistributedSampler(dataset.size(), 2, 1).size() == 2);
  CHECK(ShardSampler(dataset, world, {.shards = 2, .batch_size = 2}).size() == 4);
  const auto stacked = Stream().map(torch::data::transforms::Stack<>());
  DistributedSampler sampler(stacked, world);
  sampler.set_epoch(0);
  std::size_t batches = 0;
  for (auto& [x, y] : loader(stacked, sampler, {.batch_size = 2})) batches += x.size(0) == y.size(0) ? 1 : 0;
  CHECK(batches == 2);
  dataset.known = false;
  CHECK_ERROR(error_of([&] { DistributedSampler(dataset.size(), world); }), ErrorKind::invalid_argument,
              "the dataset returns no size");
  CHECK_ERROR(error_of([&] { DistributedSampler(dataset, world); }), ErrorKind::invalid_argument);
}

TEST_CASE("a step of training") {
  const World world = world_of_one();
  torch::nn::Linear model(2, 1);
  CHECK(convert_sync_batchnorm(model, world) == 0);
  DistributedDataParallel ddp(model, world);
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
  {
    const auto guard = ddp.no_sync();
    ddp(at::ones({3, 2})).sum().backward();
  }
  ddp->forward(at::ones({3, 2})).sum().backward();
  CHECK(clip_grad_norm(ddp.parameters(), 1.0) > 1);
  optimizer.step();
  ddp.zero_grad();
  ddp.eval();
  CHECK_FALSE(ddp.is_training());
}

}  // namespace guesses_test
