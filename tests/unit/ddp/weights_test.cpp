// How much each rank's gradients count: Weighting::samples.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/ddp/backward_in_parts.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "tests/unit/ddp/models.h"

namespace weights_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

// feature: E-07
TEST_CASE("weighting by samples gives the gradient of one process with all samples, also over accumulation") {
  for (const Over transport : kTransports) {
    run_group_or_throw(3, transport, [&](const ProcessGroup& group) {
      Forked model, alone;
      set_weights(model, 1);
      set_weights(alone, 1);
      DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
      const auto x = [](int rank, int micro) { return wave({1 + rank * 2 + micro * 3, 4}, rank * 10 + micro); };
      for (int step = 0; step < 2; ++step) {
        ddp.zero_grad();
        {
          const auto guard = ddp.no_sync();
          ddp(x(group.rank(), 0), true).square().mean().backward();
        }
        ddp(x(group.rank(), 1), true).square().mean().backward();
        std::vector<at::Tensor> all;
        for (int rank = 0; rank < 3; ++rank) {
          for (const int micro : {0, 1}) all.push_back(x(rank, micro));
        }
        alone->zero_grad();
        alone->forward(at::cat(all), true).square().mean().backward();
        const auto expected = gradients_of(alone->parameters());
        const auto found = gradients_of(ddp.parameters());
        for (std::size_t i = 0; i < found.size(); ++i) {
          CHECK(at::allclose(found[i], expected[i], 1e-5, 1e-7));
          CHECK(same_on_all_ranks(group, found[i]));
        }
      }
      // Tokens instead of samples: the caller counts them.
      ddp.zero_grad();
      ddp.set_weight(group.rank() == 1 ? 0 : 4);
      ddp(x(group.rank(), 0), true).sum().backward();
      alone->zero_grad();
      ((alone->forward(x(0, 0), true).sum() + alone->forward(x(2, 0), true).sum()) / 2).backward();
      CHECK(at::allclose(model->left->weight.grad(), alone->left->weight.grad(), 1e-5, 1e-6));
    });
  }
}

TEST_CASE("weighting by samples: ranks may begin with different numbers of microbatches, in no_sync() or without") {
  struct Begin {
    std::vector<std::int64_t> samples;  // by rank
    int parts;
    bool rank_1_has_more;  // a backward under no_sync() before the others' first forward
  };
  for (const auto& [samples, parts, rank_1_has_more] :
       {Begin{{4, 1, 3}, 2, false}, Begin{{1, 5, 2}, 3, false}, Begin{{2, 2, 2}, 1, true}, Begin{{1, 3, 2}, 2, true}}) {
    for (const Over transport : kTransports) {
      run_group_or_throw(3, transport, [&](const ProcessGroup& group) {
        torch::nn::Linear model(4, 4), alone(4, 4);
        set_weights(model, 1);
        set_weights(alone, 1);
        DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
        const auto loss_of = [](const at::Tensor& y, const at::Tensor& target) { return (y - target).square().mean(); };
        const auto x = [&](int rank) { return wave({samples[static_cast<std::size_t>(rank)], 4}, rank); };
        std::vector<at::Tensor> all;
        if (rank_1_has_more) all.push_back(wave({3, 4}, 7));
        if (rank_1_has_more && group.rank() == 1) {
          const auto guard = ddp.no_sync();
          loss_of(ddp(all[0]), at::ones_like(all[0])).backward();
        }
        for (int rank = 0; rank < 3; ++rank) all.push_back(x(rank));
        backward_in_parts(ddp, x(group.rank()), at::ones_like(x(group.rank())), parts, loss_of);
        const at::Tensor together = at::cat(all);
        loss_of(alone->forward(together), at::ones_like(together)).backward();
        const auto found = gradients_of(ddp.parameters()), expected = gradients_of(alone->parameters());
        for (std::size_t i = 0; i < found.size(); ++i) CHECK(at::allclose(found[i], expected[i], 1e-5, 1e-6));
      });
    }
  }
}

TEST_CASE("a rank with an empty batch counts for nothing, also if its weight was given") {
  for (const bool gives_weight : {true, false}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      torch::nn::Linear model(4, 4), alone(4, 4);
      set_weights(model, 1);
      set_weights(alone, 1);
      DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
      const at::Tensor all = wave({6, 4}, 0), mine = group.rank() == 0 ? all : all.slice(0, 0, 0);
      if (gives_weight) ddp.set_weight(static_cast<double>(mine.size(0)) * 5);
      backward_in_parts(ddp, mine, mine, 2,
                        [](const at::Tensor& y, const at::Tensor& x) { return (y - x).square().mean(); });
      (alone->forward(all) - all).square().mean().backward();
      CHECK(at::allclose(model->weight.grad(), alone->weight.grad(), 1e-5, 1e-7));
      CHECK(ddp.weight().has_value() == gives_weight);
    });
  }
}

TEST_CASE("a weight that is not a number of 0 or more is refused, and the last one stays") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    Forked model;
    DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const std::pair<double, const char*> wrong[] = {
        {-1, "got -1;"}, {std::numeric_limits<double>::quiet_NaN(), "got nan;"}, {kInfinity, "got inf;"}};
    for (const auto& [weight, text] : wrong) {
      CHECK_THROWS_WITH_AS(ddp.set_weight(weight), doctest::Contains(text), Error);
      CHECK_THROWS_WITH_AS(ddp.set_weight(weight), doctest::Contains("a finite number, 0 or more"), Error);
    }
    ddp.set_weight(0);
    ddp.set_weight(std::nullopt);
    ddp(wave({3, 4}, 0), true).sum().backward();
    CHECK(model->left->weight.grad().defined());
  });
}

TEST_CASE("a rank alone weighs its microbatches too") {
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    Forked model, alone;
    set_weights(model, 1);
    set_weights(alone, 1);
    DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
    {
      const auto guard = ddp.no_sync();
      ddp(wave({3, 4}, 0), true).square().mean().backward();
    }
    ddp(wave({5, 4}, 1), true).square().mean().backward();
    alone->forward(at::cat({wave({3, 4}, 0), wave({5, 4}, 1)}), true).square().mean().backward();
    CHECK(at::allclose(model->left->weight.grad(), alone->left->weight.grad(), 1e-5, 1e-7));
  });
}

}  // namespace weights_test
