#include "lockstep/data/gather_predictions.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <string>

#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// What a model predicts for a sample that has this number.
at::Tensor predictions_of(std::span<const std::int64_t> samples) {
  at::Tensor rows = at::empty({static_cast<std::int64_t>(samples.size()), 2});
  for (std::size_t i = 0; i < samples.size(); ++i) rows[static_cast<std::int64_t>(i)].fill_(samples[i] + 0.5);
  return rows;
}

}  // namespace

TEST_CASE("every sample has its row once, in the data set's order, on rank 0") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::size_t samples : {0U, 1U, 3U, 10U, 12U}) {
      for (const auto& options :
           {SamplerOptions{}, SamplerOptions{.shuffle = false}, SamplerOptions{.padding = Padding::none},
            SamplerOptions{.layout = Layout::contiguous}}) {
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
                "rank 1 has 4 rows where the sampler has 5 indices", "rank 0 has Float rows of [2]");
    CHECK_ERROR(error(group.rank() == 1 ? right.to(at::kDouble) : right), ErrorKind::invalid_argument, "Double rows");
    CHECK_ERROR(error(at::zeros({4, 2})), ErrorKind::invalid_argument, "every rank has 4 rows where");
    CHECK_ERROR(error({}), ErrorKind::invalid_argument, "every rank has no rows");
    DistributedSampler cut(9, group, {.drop_last = true});
    CHECK_ERROR(error_of([&] { gather_predictions(group, cut, at::zeros({4})); }), ErrorKind::invalid_argument,
                "leaves out samples");
    gather_predictions(group, sampler, right);
  });
}
