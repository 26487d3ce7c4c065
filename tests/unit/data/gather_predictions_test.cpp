#include "lockstep/train/data/gather_predictions.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <string>

#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"

namespace gather_predictions_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

// What a model predicts for a sample that has this number.
at::Tensor predictions_of(std::span<const std::int64_t> samples) {
  at::Tensor rows = at::empty({static_cast<std::int64_t>(samples.size()), 2});
  for (std::size_t i = 0; i < samples.size(); ++i) rows[static_cast<std::int64_t>(i)].fill_(samples[i] + 0.5);
  return rows;
}

}  // namespace

// feature: G-12
TEST_CASE("every sample has its row once, in the data set's order, on rank 0") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::size_t samples : {0U, 1U, 3U, 10U, 12U}) {
      for (const auto& options :
           {SamplerOptions{}, SamplerOptions{.shuffle = false}, SamplerOptions{.padding = Padding::none},
            SamplerOptions{.layout = ShardLayout::contiguous}}) {
        run_group_or_throw(ranks, Over::arena, [&](const ProcessGroup& group) {
          DistributedSampler sampler(samples, group, options);
          sampler.set_epoch(3);
          const at::Tensor all = gather_predictions(group, sampler, predictions_of(sampler.indices()));
          REQUIRE(all.defined() == (group.rank() == 0));
          if (group.rank() != 0) return;
          REQUIRE(all.size(0) == static_cast<std::int64_t>(samples));
          CHECK(at::equal(all.select(1, 1), at::arange(static_cast<std::int64_t>(samples), at::kFloat) + 0.5));
        });
      }
    }
  }
}

TEST_CASE("rows that do not fit the sampler are an error on all ranks, and the group goes on") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    DistributedSampler sampler(10, group, {.shuffle = false});
    const auto error = [&](const at::Tensor& rows) {
      return error_of([&] { gather_predictions(group, sampler, rows); });
    };
    const at::Tensor right = predictions_of(sampler.indices());
    CHECK_ERROR(error(group.rank() == 1 ? right.narrow(0, 0, 4) : right), ErrorKind::invalid_argument,
                "rank 1 has 4 rows, but its sampler has 5 indices", "rank 0 has Float rows of [2]");
    CHECK_ERROR(error(group.rank() == 1 ? right.to(at::kDouble) : right), ErrorKind::invalid_argument, "Double rows");
    CHECK_ERROR(error(at::zeros({4, 2})), ErrorKind::invalid_argument, "every rank has 4 rows, but");
    CHECK_ERROR(error({}), ErrorKind::invalid_argument, "every rank has no rows");
    DistributedSampler cut(9, group, {.drop_last = true});
    CHECK_ERROR(error_of([&] { gather_predictions(group, cut, at::zeros({4})); }), ErrorKind::invalid_argument,
                "the samplers leave out samples (drop_last)");
    DistributedSampler own(10, group, {.drop_last = group.rank() == 1});
    CHECK_ERROR(error_of([&] { gather_predictions(group, own, right); }), ErrorKind::invalid_argument, "rank 1 has",
                "without the last ones (drop_last)");
    gather_predictions(group, sampler, right);
  });
}

TEST_CASE("samplers that are not of this group, or differ, are an error on all ranks") {
  run_group_or_throw(4, Over::arena, [](const ProcessGroup& group) {
    const auto error = [&](DistributedSampler sampler) {
      return error_of([&] { gather_predictions(group, sampler, predictions_of(sampler.indices())); });
    };
    const int rank = group.rank();
    CHECK_ERROR(error({20, 2, rank % 2}), ErrorKind::invalid_argument,
                "rank 2 has a sampler for 2 ranks, in a group of 4, made for rank 0, not for rank 2");
    CHECK_ERROR(error({20, 4, 0}), ErrorKind::invalid_argument, "rank 1 has a sampler for 4 ranks",
                "made for rank 0, not for rank 1");
    const auto with = [&](const SamplerOptions& options) {
      return error({20, 4, rank, rank == 3 ? options : SamplerOptions()});
    };
    CHECK_ERROR(with({.seed = 7}), ErrorKind::invalid_argument, "rank 3 has a sampler in epoch 0 of 20 samples",
                "shuffled with seed 7", "shuffled with seed 0");
    CHECK_ERROR(with({.shuffle = false}), ErrorKind::invalid_argument, "rank 3 has", "not shuffled");
    CHECK_ERROR(with({.layout = ShardLayout::contiguous}), ErrorKind::invalid_argument, "rank 3 has", "contiguous");
    CHECK_ERROR(with({.padding = Padding::none}), ErrorKind::invalid_argument, "rank 3 has", "not padded");
    DistributedSampler sampler(20, group);
    CHECK_ERROR(error_of([&] {
                  gather_predictions(group, sampler, at::ones({5, 2}).to_sparse());
                }),
                ErrorKind::invalid_argument, "every rank has Sparse rows, but dense ones are needed");
    gather_predictions(group, sampler, at::ones({5, 2}));
  });
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    DistributedSampler half(20, 2, 0);
    CHECK_ERROR(error_of([&] { gather_predictions(group, half, at::ones({10})); }), ErrorKind::invalid_argument,
                "every rank has a sampler for 2 ranks, but the group has 1");
  });
}

}  // namespace gather_predictions_test
