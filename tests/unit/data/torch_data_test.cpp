// Samplers of ours in torch::data's loaders, and its datasets in ours.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/lambda.h>
#include <torch/data/transforms/stack.h>
#include <torch/serialize.h>

#include <optional>
#include <sstream>
#include <vector>

#include "lockstep/train/data/distributed_sampler.h"
#include "lockstep/train/data/loader.h"
#include "lockstep/train/data/shard_sampler.h"
#include "tests/support/expect_error.h"
#include "tests/support/standard_error_of.h"

namespace torch_data_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

using torch::data::Example;
using Indices = std::vector<std::int64_t>;

// Sample i is i and its square. It notes, without a lock, that it was used: so no two threads may use one.
struct Squares : torch::data::datasets::Dataset<Squares> {
  Example<> get(std::size_t index) override {
    ++used;
    if (index == 1000) throw std::runtime_error("no such square");
    const auto number = static_cast<std::int64_t>(index);
    return {at::full({1}, number, at::kLong), at::full({1}, number * number, at::kLong)};
  }
  std::optional<std::size_t> size() const override { return count; }

  std::optional<std::size_t> count = 50;
  int used = 0;
};

Indices as_indices(const at::Tensor& numbers) {
  const at::Tensor flat = numbers.flatten().contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

Indices flat(const std::vector<Indices>& batches) {
  Indices all;
  for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

template <class Loader>
std::vector<Indices> pass_of(Loader& loader) {
  std::vector<Indices> batches;
  for (auto& batch : loader) batches.push_back(as_indices(batch.data));
  return batches;
}

}  // namespace

// feature: F-01
TEST_CASE("a sampler of ours fits torch::data's loaders, and follows the program's epoch") {
  for (const std::size_t workers : {0U, 2U}) {
    DistributedSampler sampler(50, 3, 1, {.shuffle = true, .seed = 5});
    auto loader =
        torch::data::make_data_loader(Squares().map(torch::data::transforms::Stack<>()), sampler,
                                      torch::data::DataLoaderOptions(4).workers(workers).enforce_ordering(true));
    for (int epoch = 0; epoch < 3; ++epoch) {
      sampler.set_epoch(epoch);
      const auto batches = pass_of(*loader);
      CHECK(flat(batches) == Indices(sampler.indices().begin(), sampler.indices().end()));
      CHECK(batches.size() == 5);
      CHECK(batches.back().size() == 1);
    }
  }
}

TEST_CASE("so does one of shards") {
  ShardSampler sampler(24, 2, 1, {.shards = 4, .batch_size = 3, .seed = 1});
  auto loader = torch::data::make_data_loader(Squares().map(torch::data::transforms::Stack<>()), sampler,
                                              torch::data::DataLoaderOptions(sampler.batch_size()));
  sampler.set_epoch(2);
  const auto batches = pass_of(*loader);
  sampler.begin();
  CHECK(flat(batches) == Indices(sampler.indices().begin(), sampler.indices().end()));
  CHECK(batches.size() == sampler.steps() * sampler.own_shards());
}

TEST_CASE("a sampler is saved and loaded by torch, and goes on where it stood") {
  DistributedSampler sampler(20, 1, 0, {.seed = 3});
  sampler.set_epoch(4);
  sampler.reset();
  sampler.next(6);
  std::stringstream file;
  torch::save(sampler, file);
  const auto rest = *sampler.next(20);
  CHECK(!sampler.next(1));

  DistributedSampler other(20, 1, 0, {.seed = 3});
  torch::load(other, file);
  CHECK(other.epoch() == 4);
  other.reset();
  CHECK(*other.next(20) == rest);
  other.reset();
  CHECK(other.next(20)->size() == 20);

  DistributedSampler smaller(5, 1, 0);
  std::stringstream again(file.str());
  CHECK_ERROR(error_of([&] { torch::load(smaller, again); }), ErrorKind::invalid_argument,
              "index 6 of 20, in 20 samples for 1 ranks, shuffled with seed 3", "this one is of 5 samples");
  std::stringstream strange;
  torch::save(at::ones({1}), strange);
  CHECK_ERROR(error_of([&] { torch::load(smaller, strange); }), ErrorKind::invalid_argument, "does not hold a sampler");
  CHECK_ERROR(error_of([&] { sampler.reset(21); }), ErrorKind::invalid_argument, "20 samples", "21");
}

namespace {

// The sampler as torch::save() keeps it after two batches of a pass.
template <class Loader, class Sampler>
void save_after_two(Loader& loader, const Sampler& sampler, std::stringstream& file) {
  int batches = 0;
  for ([[maybe_unused]] auto& batch : loader) {
    if (++batches < 2) continue;
    torch::save(sampler, file);
    break;
  }
}

}  // namespace

TEST_CASE("a saved sampler stands behind the batches that the program has taken") {
  Squares squares;
  auto stacked = squares.map(torch::data::transforms::Stack<>());
  for (const int workers : {-1, 0, 3}) {  // -1: torch's loader
    const auto with_loader = [&](DistributedSampler& sampler, std::size_t batch_size, const auto& use) {
      if (workers < 0) {
        auto loader = torch::data::make_data_loader(stacked, sampler, torch::data::DataLoaderOptions(batch_size));
        return use(*loader);
      }
      auto ours = loader(stacked, sampler, {.batch_size = batch_size, .workers = workers});
      return use(ours);
    };
    CAPTURE(workers);
    DistributedSampler sampler(50, 2, 1, {.seed = 3});
    sampler.set_epoch(2);
    const Indices all(sampler.indices().begin(), sampler.indices().end());
    std::stringstream file;
    with_loader(sampler, 4, [&](auto& loader) { save_after_two(loader, sampler, file); });

    DistributedSampler other(50, 2, 1, {.seed = 3});
    torch::load(other, file);
    other.set_epoch(other.epoch());
    with_loader(other, 3, [&](auto& loader) {
      CHECK(flat(pass_of(loader)) == Indices(all.begin() + 8, all.end()));
      other.set_epoch(3);
      CHECK(flat(pass_of(loader)) == Indices(other.indices().begin(), other.indices().end()));
    });
    std::stringstream again(file.str());
    torch::load(other, again);
    other.set_epoch(3);  // the position was of epoch 2
    with_loader(other, 4, [&](auto& loader) { CHECK(flat(pass_of(loader)).size() == 25); });
  }
}

TEST_CASE("a pass that left out its last batch has ended") {
  Squares squares;
  auto stacked = squares.map(torch::data::transforms::Stack<>());
  DistributedSampler sampler(50, 2, 1);
  auto loader = lockstep::loader(stacked, sampler, {.batch_size = 4, .drop_last = true});
  CHECK(flat(pass_of(loader)).size() == 24);
  std::stringstream file;
  torch::save(sampler, file);
  DistributedSampler other(50, 5, 0);
  torch::load(other, file);
  other.reset();
  CHECK(!other.next(1));
}

TEST_CASE("so does one of shards, and a loader counts what is left") {
  Squares squares;
  auto stacked = squares.map(torch::data::transforms::Stack<>());
  const ShardSamplerOptions options{.shards = 2, .batch_size = 3, .seed = 1};
  ShardSampler sampler(24, 1, 0, options);
  auto whole = shard_loader(stacked, sampler);
  std::stringstream file;
  save_after_two(whole, sampler, file);
  ShardSampler other(24, 1, 0, options);
  torch::load(other, file);
  auto rest = shard_loader(stacked, other);
  CHECK(rest.size() == 6);
  CHECK(flat(pass_of(rest)) == Indices(sampler.indices().begin() + 6, sampler.indices().end()));
  CHECK(rest.size() == 8);
}

TEST_CASE("in the middle of an epoch a position is of the same order only, between two it is of any") {
  const auto saved_at = [](auto sampler, std::size_t position) {
    sampler.set_epoch(2);
    sampler.reset();
    if (position != 0) sampler.next(position);
    std::stringstream file;
    torch::save(sampler, file);
    return file.str();
  };
  const auto load = [](auto& sampler, const std::string& text) {
    std::stringstream file(text);
    torch::load(sampler, file);
  };
  const DistributedSampler saved(100, 4, 0, {.seed = 1});
  const std::string begun = saved_at(saved, 0), within = saved_at(saved, 15), ended = saved_at(saved, 25);
  DistributedSampler same(100, 4, 3, {.seed = 1});  // another rank's
  load(same, within);
  same.reset();
  CHECK(same.next(100)->size() == 10);
  const SamplerOptions unpadded{.padding = Padding::none};  // ranks have 3, 3 and 2 indices
  DistributedSampler shorter(8, 3, 2, unpadded);
  load(shorter, saved_at(DistributedSampler(8, 3, 0, unpadded), 2));
  shorter.reset();
  CHECK(!shorter.next(1));
  for (DistributedSampler other :
       {DistributedSampler(100, 2, 0, {.seed = 1}), DistributedSampler(100, 4, 0, {.seed = 2}),
        DistributedSampler(100, 4, 0, {.shuffle = false}), DistributedSampler(99, 4, 0, {.seed = 1}),
        DistributedSampler(100, 4, 0, {.seed = 1, .layout = ShardLayout::contiguous})}) {
    CHECK_ERROR(error_of([&] { load(other, within); }), ErrorKind::invalid_argument,
                "is at index 15 of 25, in " + saved.describe(), "this one is of " + other.describe(),
                "between two epochs");
    CHECK(other.epoch() == 0);
    load(other, begun);
    CHECK(other.epoch() == 2);
    other.reset();
    CHECK(other.next(100)->size() == other.size());
    load(other, ended);
    other.reset();
    CHECK(!other.next(1));
  }
  const ShardSamplerOptions options{.shards = 4, .batch_size = 3, .seed = 1};
  const std::string in_shards = saved_at(ShardSampler(24, 1, 0, options), 6);
  ShardSampler on_two(24, 2, 0, options);
  CHECK_ERROR(error_of([&] { load(on_two, in_shards); }), ErrorKind::invalid_argument, "is at index 6 of 24",
              "in the middle of a step of 12", "between two steps");
  load(on_two, saved_at(ShardSampler(24, 1, 0, options), 12));
  on_two.reset();
  CHECK(on_two.next(100)->size() == 6);
  ShardSampler unlike(24, 2, 0, {.shards = 2, .batch_size = 3, .seed = 1});
  CHECK_ERROR(error_of([&] { load(unlike, in_shards); }), ErrorKind::invalid_argument,
              "24 samples in 4 shards, 3 a batch", "24 samples in 2 shards");
  CHECK_ERROR(error_of([&] { load(same, in_shards); }), ErrorKind::invalid_argument, "in 4 shards", "for 4 ranks");
}

TEST_CASE("a dataset of torch::data is read by a loader of ours, mapped or not, by any number of threads") {
  const Indices order = [] {
    Indices all;
    for (std::int64_t i = 49; i >= 0; i -= 2) all.push_back(i);
    return all;
  }();
  Squares squares;
  auto stacked = squares.map(torch::data::transforms::Stack<>());
  for (const int workers : {0, 1, 4}) {
    std::vector<Indices> batches;
    for (auto& [x, y] : loader(stacked, order, {.batch_size = 4, .workers = workers})) {
      CHECK(at::equal(x * x, y));
      batches.push_back(as_indices(x));
    }
    CHECK(flat(batches) == order);
    Indices unmapped;
    for (auto& batch : loader(squares, order, {.batch_size = 4, .workers = workers})) {
      for (const Example<>& example : batch) unmapped.push_back(example.data.item<std::int64_t>());
    }
    CHECK(unmapped == order);
  }
  CHECK(squares.used == 0);  // copies were
}

TEST_CASE("a dataset may have no size, and its errors name the batch") {
  Squares endless;
  endless.count = std::nullopt;
  const auto stacked = endless.map(torch::data::transforms::Stack<>());
  const Indices order{7, 900, 1000, 3};
  std::vector<std::int64_t> seen;
  const Error error = error_of([&] {
    for (auto& [x, y] : loader(stacked, order, {.batch_size = 2, .workers = 1})) seen.push_back(x.numel());
  });
  CHECK_ERROR(error, ErrorKind::internal, "batch 1", "no such square");
  CHECK(seen == std::vector<std::int64_t>{2});
  Squares squares;
  CHECK_ERROR(error_of([&] { loader(squares, order).begin(); }), ErrorKind::invalid_argument, "index 900",
              "the dataset has 50 samples");
}

TEST_CASE("batches of shards, too") {
  Squares squares;
  ShardSampler sampler(24, 1, 0, {.shards = 2, .batch_size = 3, .seed = 1});
  Indices seen;
  for (auto& batch : shard_loader(squares, sampler)) {
    for (const Example<>& example : batch) seen.push_back(example.data.item<std::int64_t>());
  }
  CHECK(seen == Indices(sampler.indices().begin(), sampler.indices().end()));
}

// feature: F-16
TEST_CASE("memory is pinned where there is a device for it, and otherwise as it was") {
  Squares squares;
  auto stacked = squares.map(torch::data::transforms::Stack<>());
  const Indices order{1, 2, 3};
  bool pinned = false;
  const std::string warning = standard_error_of([&] {
    for (int pass = 0; pass < 2; ++pass) {
      for (auto& [x, y] : loader(stacked, order, {.pin_memory = true})) {
        CHECK(at::equal(x * x, y));
        pinned = x.is_pinned() && y.is_pinned();
      }
    }
  });
  CHECK(pinned == has_device_to_pin_for());
  if (!pinned) CHECK(contains(warning, "pin_memory has no effect"));
  static_assert(has_tensors<std::vector<Example<>>>() && has_tensors<std::pair<int, at::Tensor>>());
  static_assert(!has_tensors<Indices>() && !has_tensors<std::string>());
}

}  // namespace torch_data_test
