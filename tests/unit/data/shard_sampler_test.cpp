#include <doctest/doctest.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/train/data/shard_sampler.h"
#include "tests/support/expect_error.h"

namespace shard_sampler_test {

using namespace lockstep;

namespace {

using Batches = std::vector<std::vector<std::int64_t>>;

// Hands out the indices that it was asked for.
struct Echo {
  std::size_t count = 0;
  std::size_t size() const { return count; }
  std::vector<std::int64_t> get_batch(std::span<const std::int64_t> indices) const {
    return {indices.begin(), indices.end()};
  }
};

// What each shard gets in each step: the ranks' batches side by side, step by step.
Batches batches_of(std::size_t samples, int ranks, const ShardSamplerOptions& options, std::int64_t epoch = 0,
                   std::int64_t first_step = 0) {
  const Echo dataset{samples};
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::int64_t>> found;  // (step, shard)
  for (int rank = 0; rank < ranks; ++rank) {
    ShardSampler sampler(samples, ranks, rank, options);
    sampler.set_epoch(epoch);
    std::size_t number = 0;
    for (auto& batch : shard_loader(dataset, sampler, {.workers = 0, .first_batch = first_step})) {
      const std::size_t own = sampler.own_shards();
      found[{number / own, static_cast<std::size_t>(rank) * own + number % own}] = batch;
      ++number;
    }
    CHECK(number == (sampler.steps() - static_cast<std::size_t>(first_step)) * sampler.own_shards());
  }
  Batches batches;
  for (auto& [place, batch] : found) batches.push_back(std::move(batch));
  return batches;
}

}  // namespace

TEST_CASE("a shard has the same samples at any number of ranks, and after a resume in mid-epoch") {
  const ShardSamplerOptions options{.shards = 8, .batch_size = 3, .seed = 4};
  for (const std::size_t samples : {24, 100, 240}) {
    const Batches expected = batches_of(samples, 1, options, 2);
    CHECK(batches_of(samples, 1, options, 3) != expected);
    for (const int ranks : {2, 4, 8}) {
      CHECK(batches_of(samples, ranks, options, 2) == expected);
      const Batches resumed = batches_of(samples, ranks, options, 2, 1);
      CHECK(resumed == Batches(expected.begin() + 8, expected.end()));
    }
  }
}

TEST_CASE("an epoch has every sample, the last step is full, and drop_last leaves it out") {
  ShardSamplerOptions options{.shards = 4, .batch_size = 2};
  Batches batches = batches_of(19, 2, options);
  CHECK(batches.size() == 3 * 4);
  std::set<std::int64_t> seen;
  for (const auto& batch : batches) {
    CHECK(batch.size() == 2);
    seen.insert(batch.begin(), batch.end());
  }
  CHECK(seen.size() == 19);
  options.drop_last = true;
  batches = batches_of(19, 2, options);
  CHECK(batches.size() == 2 * 4);
  seen.clear();
  for (const auto& batch : batches) seen.insert(batch.begin(), batch.end());
  CHECK(seen.size() == 16);
}

TEST_CASE("one step over all shards takes the samples that one sampler for all of them would take") {
  const Batches batches = batches_of(64, 4, {.shards = 8, .batch_size = 4, .shuffle = false});
  std::set<std::int64_t> first_step;
  for (int shard = 0; shard < 8; ++shard) {
    const auto& batch = batches[static_cast<std::size_t>(shard)];
    first_step.insert(batch.begin(), batch.end());
  }
  CHECK(first_step.size() == 32);
  CHECK(*first_step.rbegin() == 31);
}

TEST_CASE("without shards a rank has what a sampler for all ranks gives it, in the batches of a plain loader") {
  for (const std::size_t samples : {1, 7, 24, 25}) {
    for (const int ranks : {1, 2, 3}) {
      for (int rank = 0; rank < ranks; ++rank) {
        const Echo dataset{samples};
        ShardSampler sampler(samples, ranks, rank, {.shards = 0, .batch_size = 4, .seed = 9});
        DistributedSampler plain(samples, ranks, rank, {.seed = 9});
        sampler.set_epoch(1);
        plain.set_epoch(1);
        CHECK(sampler.own_shards() == 1);
        Batches expected, found;
        for (auto& batch : loader(dataset, plain, {.batch_size = 4})) expected.push_back(batch);
        for (auto& batch : shard_loader(dataset, sampler)) found.push_back(batch);
        CHECK(found == expected);
        CHECK(sampler.steps() == expected.size());
      }
    }
  }
  CHECK(ShardSampler(10, 2, 0, {.shards = 0, .batch_size = 4, .drop_last = true}).size() == 4);
}

// feature: N-06
TEST_CASE("Fashion-MNIST with 128 images a step has 469 steps an epoch on 1, 2 and 4 ranks") {
  for (const int ranks : {1, 2, 4}) {
    const auto local = static_cast<std::size_t>(128 / ranks);
    CHECK(ShardSampler(60'000, ranks, ranks - 1, {.shards = 0, .batch_size = local}).steps() == 469);
    CHECK(ShardSampler(60'000, ranks, ranks - 1, {.shards = 4, .batch_size = 32}).steps() == 469);
  }
}

TEST_CASE("a shard sampler that cannot work is refused") {
  const auto text = [](int replicas, int rank, const ShardSamplerOptions& options) {
    return std::string(error_of([&] { ShardSampler(10, replicas, rank, options); }).what());
  };
  CHECK(text(4, 0, {.shards = 6}) ==
        "shard sampler: shards is 6; for 4 ranks it must be 0 or a positive multiple of 4");
  CHECK(text(2, 2, {.shards = 4}) == "shard sampler: there is no rank 2 of 2");
  CHECK(text(2, 0, {.shards = 4, .batch_size = 0}) == "shard sampler: batch_size is 0; give 1 or more");
}

}  // namespace shard_sampler_test
