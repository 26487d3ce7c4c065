// How much each rank's gradients count: Weighting::samples.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/backward_in_parts.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/support/expect_error.h"
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
      CHECK_THROWS_WITH_AS(ddp.set_weight(weight), doctest::Contains("finite, 0 or more"), Error);
    }
    ddp.set_weight(0);
    ddp.set_weight(std::nullopt);
    ddp(wave({3, 4}, 0), true).sum().backward();
    CHECK(model->left->weight.grad().defined());
  });
}

namespace {

// The gradients of a and b are times the mean of x.
struct TwoImpl : torch::nn::Module {
  TwoImpl() {
    a = register_parameter("a", here(at::zeros({1})));
    b = register_parameter("b", here(at::zeros({1})));
  }
  at::Tensor forward(const at::Tensor& x, double of_a = 1, double of_b = 1) {
    return (x * a).mean() * of_a + (x * b).mean() * of_b;
  }
  at::Tensor a, b;
};
TORCH_MODULE(Two);

at::Tensor batch(std::int64_t samples, double value) { return here(at::full({samples}, value)); }
double value_of(const at::Tensor& tensor) { return tensor.item<double>(); }

// The mean of x * w, whose backward asks autograd::grad for the parameter's gradient.
struct ByGrad : torch::autograd::Function<ByGrad> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({x, w});
    return (x * w).mean();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::AutoGradMode grad_mode(true);
    return {{}, torch::autograd::grad({(saved[0].detach() * saved[1]).mean()}, {saved[1]}, {gradients[0]})[0]};
  }
};

struct ByGradImpl : torch::nn::Module {
  ByGradImpl() { w = register_parameter("w", here(at::zeros({1}))); }
  at::Tensor forward(const at::Tensor& x) { return ByGrad::apply(x, w); }
  at::Tensor w;
};

}  // namespace

TEST_CASE("a rank may make its first forwards alone under no_sync()") {
  for (const int alone : {0, 1}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      Two model;
      DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
      if (group.rank() == alone) {
        const auto guard = ddp.no_sync();
        ddp(batch(4, 7)).backward();
        if (alone == 1) ddp.zero_grad();
        ddp(batch(3, 5)).backward();
      }
      ddp(batch(2, group.rank())).backward();
      const double expected = alone == 1 ? (3 * 5 + 2 * 0 + 2 * 1) / 7.0 : (4 * 7 + 3 * 5 + 2 * 0 + 2 * 1) / 11.0;
      CHECK(value_of(model->a.grad()) == doctest::Approx(expected));
      ddp.zero_grad();
      ddp(batch(2 + group.rank(), 3)).backward();
      CHECK(value_of(model->a.grad()) == doctest::Approx(3));
    });
  }
}

TEST_CASE("weights count in evaluation mode too, from the first backward on") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Two model;
    DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
    ddp.eval();
    if (group.rank() == 1) (void)ddp(batch(7, 1));
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      ddp(group.rank() == 0 ? batch(6, 1) : batch(2, 3)).backward();
      CHECK(value_of(model->a.grad()) == doctest::Approx((6 * 1 + 2 * 3) / 8.0));
    }
  });
}

TEST_CASE("autograd::grad within a backward weighs nothing") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto model = std::make_shared<ByGradImpl>();
    DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      ddp(group.rank() == 0 ? batch(6, 1) : batch(2, 4)).backward();
      CHECK(value_of(model->w.grad()) == doctest::Approx((6 * 1 + 2 * 4) / 8.0));
    }
  });
}

TEST_CASE("a gradient that is zeroed behind autograd's back counts for nothing" * on_host()) {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Two model;
    DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
    {
      const auto guard = ddp.no_sync();
      ddp(batch(group.rank() == 0 ? 8 : 2, 5)).backward();
    }
    for (const at::Tensor& parameter : model->parameters()) parameter.grad().data().zero_();
    ddp(batch(2, group.rank() == 0 ? 1 : 3)).backward();
    CHECK(value_of(model->a.grad()) == doctest::Approx(2));
  });
}

TEST_CASE("a gradient that is zero by itself keeps its weight when all are scaled, and loses it when all are zeroed" *
          on_host()) {
  for (const bool scales : {true, false}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      Two model;
      DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
      {
        const auto guard = ddp.no_sync();
        ddp(batch(6, 1), group.rank() == 0 ? 0 : -1, 1).backward();
      }
      for (const at::Tensor& parameter : model->parameters()) parameter.grad().mul_(scales ? 1 : 0);
      ddp(batch(2, 1)).backward();
      CHECK(value_of(model->a.grad()) == doctest::Approx(scales ? (6 * 0 + 2 - 6 + 2) / 16.0 : 1));
      CHECK(value_of(model->b.grad()) == doctest::Approx(1));
    });
  }
}

TEST_CASE("what has no weight counts for nothing, also if it is infinite") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Two model;
    DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
    ddp.set_weight(group.rank() == 0 ? 1 : 0);
    ddp(batch(1, group.rank() == 0 ? 2 : std::numeric_limits<double>::infinity())).backward();
    CHECK(value_of(model->a.grad()) == 2);
  });
}

TEST_CASE("a sparse gradient of unknown weight is refused like a dense one" * on_host()) {
  const auto errors = run_group(2, Over::arena, [](const ProcessGroup& group) {
    torch::nn::Embedding model(torch::nn::EmbeddingOptions(6, 2).sparse(true));
    DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
    const at::Tensor rows = at::tensor({group.rank(), 3}, at::kLong);
    ddp(rows).sum().backward();
    ddp.zero_grad();
    model->forward(rows).sum().backward();
    ddp(rows).sum().backward();
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(contains(error_of([&] { std::rethrow_exception(error); }).what(),
                   "was left by a backward pass outside DistributedDataParallel"));
  }
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
