// Forwards whose outputs tell little of their graph: nothing, a leaf, or less than the model has kept.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/support/expect_error.h"
#include "tests/support/recomputed.h"
#include "tests/unit/ddp/models.h"

namespace outputs_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

// Which DistributedDataParallel cannot look into.
struct Opaque {
  at::Tensor y;
};

struct PairImpl : torch::nn::Module {
  PairImpl() {
    first = register_module("first", torch::nn::Linear(4, 4));
    last = register_module("last", torch::nn::Linear(4, 4));
  }
  at::Tensor plain(const at::Tensor& x) { return last->forward(at::tanh(first->forward(x))); }
  torch::nn::Linear first = nullptr, last = nullptr;
};

template <class Model>
void check_averages(const ProcessGroup& group, const Model& model, const Model& alone) {
  const auto found = model.parameters(), expected = alone.parameters();
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    at::Tensor mean = expected[i].grad().defined() ? expected[i].grad().clone() : at::zeros_like(expected[i]);
    group.all_reduce(mean, ReduceOp::avg);
    REQUIRE(found[i].grad().defined());
    CHECK(at::allclose(found[i].grad(), mean, 1e-5, 1e-7));
  }
}

// A wrapped model, and its twin that is averaged by hand.
template <class Impl>
struct Twins {
  explicit Twins(const ProcessGroup& over, const DdpOptions& options = {}) : group(over) {
    set_weights(model, 1);
    set_weights(alone, 1);
    ddp.emplace(model, group, options);
  }
  void zero_grad() {
    model->zero_grad();
    alone->zero_grad();
  }
  void check() { check_averages(group, *model, *alone); }
  at::Tensor x(int which) const { return wave({3, 4}, 10 * which + group.rank()); }

  const ProcessGroup& group;
  const std::shared_ptr<Impl> model = std::make_shared<Impl>(), alone = std::make_shared<Impl>();
  std::optional<DistributedDataParallel<std::shared_ptr<Impl>>> ddp;
};

at::Tensor loss_of(const at::Tensor& y) { return y.square().sum(); }

struct OpaqueImpl : PairImpl {
  Opaque forward(const at::Tensor& x, int recomputed = 0) {
    const at::Tensor h = at::tanh(recomputed == 2 ? testing::recomputed(x, first) : first->forward(x));
    return {recomputed == 0 ? last->forward(h) : testing::recomputed(h, last)};
  }
};

}  // namespace

TEST_CASE("what a segment computes anew before the backward has come to the forward is averaged") {
  struct HeadlessImpl : PairImpl {
    at::Tensor forward(const at::Tensor& x) { return at::tanh(first->forward(x)); }
  };
  for (const DdpOptions& options : {DdpOptions{.find_unused_parameters = true}, DdpOptions{.static_graph = true}}) {
    CAPTURE(options.static_graph);
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      Twins<OpaqueImpl> opaque(group, options);
      Twins<HeadlessImpl> headless(group, options);
      for (int step = 0; step < 3; ++step) {
        opaque.zero_grad();
        loss_of((*opaque.ddp)(opaque.x(step), 1).y).backward();
        loss_of(opaque.alone->plain(opaque.x(step))).backward();
        opaque.check();
        headless.zero_grad();
        loss_of(recomputed((*headless.ddp)(headless.x(step)), headless.model->last)).backward();
        loss_of(headless.alone->plain(headless.x(step))).backward();
        headless.check();
      }
    });
  }
}

TEST_CASE("an opaque output whose graph shows in no backward is an error at the next forward") {
  const auto errors = run_group(2, Over::arena, [](const ProcessGroup& group) {
    Twins<OpaqueImpl> twins(group);
    loss_of((*twins.ddp)(twins.x(0).requires_grad_(), 2).y).backward();
    (void)(*twins.ddp)(twins.x(1), 2);
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK_THROWS_WITH_AS(std::rethrow_exception(error), doctest::Contains("without going through the last forward"),
                         Error);
  }
}

TEST_CASE("many opaque outputs may wait for their backwards, in any order") {
  constexpr int kForwards = 8;
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Twins<OpaqueImpl> twins(group);
    for (int step = 0; step < 3; ++step) {
      twins.zero_grad();
      std::vector<Opaque> outputs;
      for (int i = 0; i < kForwards; ++i) outputs.push_back((*twins.ddp)(twins.x(i)));
      for (; !outputs.empty(); outputs.pop_back()) loss_of(outputs.back().y).backward();
      for (int i = 0; i < kForwards; ++i) loss_of(twins.alone->plain(twins.x(i))).backward();
      twins.check();
    }
  });
}

TEST_CASE("what a model has kept is averaged when its output is gone and another forward has come") {
  struct KeepingImpl : PairImpl {
    at::Tensor forward(const at::Tensor& x) {
      kept = first->forward(x);
      return last->forward(kept);
    }
    at::Tensor kept;
  };
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Twins<KeepingImpl> twins(group, {.find_unused_parameters = true});
    for (int step = 0; step < 2; ++step) {
      twins.zero_grad();
      (void)twins.ddp->forward(twins.x(step));
      const at::Tensor kept = twins.model->kept;
      (void)twins.ddp->forward(twins.x(step + 5));
      loss_of(kept).backward();
      (void)twins.alone->forward(twins.x(step));
      loss_of(twins.alone->kept).backward();
      at::Tensor mean = twins.alone->first->weight.grad().clone();
      group.all_reduce(mean, ReduceOp::avg);
      CHECK(at::allclose(twins.model->first->weight.grad(), mean, 1e-5, 1e-7));
    }
  });
}

TEST_CASE("a leaf among the outputs claims no backward of the bare module") {
  struct EchoImpl : PairImpl {
    std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {plain(x), x}; }
  };
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Twins<EchoImpl> twins(group);
    for (int step = 0; step < 2; ++step) {
      const auto output = (*twins.ddp)(twins.x(step).requires_grad_());
      if (group.rank() == 0) loss_of(twins.model->plain(twins.x(9))).backward();
      twins.zero_grad();
      loss_of(std::get<0>(output)).backward();
      loss_of(twins.alone->plain(twins.x(step))).backward();
      twins.check();
    }
  });
}

TEST_CASE("a parameter that forward returns is averaged in each backward") {
  struct TableImpl : PairImpl {
    std::tuple<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& x) {
      return {plain(x), {first->weight, last->bias}};
    }
  };
  for (const Weighting weighting : {Weighting::ranks, Weighting::samples}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      Twins<TableImpl> twins(group, {.find_unused_parameters = true, .weighting = weighting});
      for (int step = 0; step < 2; ++step) {
        twins.zero_grad();
        const auto [y, table] = (*twins.ddp)(twins.x(step));
        const at::Tensor decay = loss_of(table[0]) * (1 + group.rank()) + loss_of(table[1]);
        decay.backward({}, /*keep_graph=*/true);
        decay.backward();
        loss_of(y).backward();
        const at::Tensor other =
            loss_of(twins.alone->first->weight) * (1 + group.rank()) + loss_of(twins.alone->last->bias);
        (other * 2 + loss_of(twins.alone->plain(twins.x(step)))).backward();
        twins.check();
      }
    });
  }
}

TEST_CASE("what a backward computes to be differentiated again belongs to the wrapper, what comes after it does not") {
  struct ScaleImpl : torch::nn::Module {
    ScaleImpl() { scale = register_parameter("scale", at::ones({4})); }
    at::Tensor forward(const at::Tensor& x) { return x * scale; }
    at::Tensor scale;
  };
  for (const bool only_inputs : {true, false}) {
    CAPTURE(only_inputs);
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      Twins<ScaleImpl> twins(group);
      // The gradient of the input has the parameter in its graph, and no node of the forward.
      const auto train = [&](auto& model, auto& bare) {
        const at::Tensor x = twins.x(0).requires_grad_();
        const at::Tensor y = model.forward(x).sum();
        at::Tensor gradient;
        if (only_inputs) {
          gradient = torch::autograd::grad({y}, {x}, {}, true, true)[0];
        } else {
          torch::autograd::backward({y}, {}, true, true);
          gradient = x.grad();
        }
        if (group.rank() == 0) loss_of(bare.forward(twins.x(9))).backward();
        bare.zero_grad();
        loss_of(gradient * twins.x(3)).backward();
        x.mutable_grad().reset();
      };
      for (int step = 0; step < 2; ++step) {
        twins.zero_grad();
        train(*twins.ddp, *twins.model);
        train(*twins.alone, *twins.alone);
        twins.check();
      }
    });
  }
}

TEST_CASE("of many forwards whose outputs are kept, a backward finds its own, in any order") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    struct ScaleImpl : torch::nn::Module {
      ScaleImpl() : w(register_parameter("w", here(at::ones({1})))) {}
      at::Tensor forward(const at::Tensor& x, int depth) { return (depth == 0 ? x : again(x)) * w; }
      std::function<at::Tensor(const at::Tensor&)> again;
      at::Tensor w;
    };
    const auto model = std::make_shared<ScaleImpl>();
    DistributedDataParallel ddp(model, group);
    model->again = [&](const at::Tensor& x) { return ddp(x, 0); };
    // Odd ones are local, and each seventh calls its wrapper again.
    std::vector<at::Tensor> outputs;
    constexpr int kForwards = 700;
    for (int i = 0; i < kForwards; ++i) {
      const auto forward = [&] { outputs.push_back(ddp(here(at::full({1}, 1.0 + group.rank())), i % 7 == 0 ? 1 : 0)); };
      if (i % 2 == 0) {
        forward();
      } else {
        const auto guard = ddp.no_sync();
        forward();
      }
    }
    const auto gradient_of = [&](const at::Tensor& loss) {
      ddp.zero_grad();
      loss.sum().backward({}, /*retain_graph=*/true);
      return model->w.grad().item<double>();
    };
    const auto expected = [&](int i) { return (i % 2 == 1 ? 1.0 + group.rank() : 1.5) * (i % 7 == 0 ? 2 : 1); };
    for (int i = 0; i < kForwards; i += 23) CHECK(gradient_of(outputs[static_cast<std::size_t>(i)]) == expected(i));
    for (const int i : {699, 350, 1, 0, 350}) CHECK(gradient_of(outputs[static_cast<std::size_t>(i)]) == expected(i));
    CHECK(gradient_of(outputs[8] + outputs[15]) == 3);  // averaged if one of them is
    for (std::size_t i = 0; i < outputs.size(); i += 3) outputs[i].reset();
    CHECK(gradient_of(outputs[697]) == expected(697));
    CHECK(gradient_of(outputs[340] + outputs[7]) == 1.5 + 3);
    outputs.erase(outputs.begin() + 10, outputs.end());
    CHECK(gradient_of(outputs[8]) == expected(8));
    for (int i = 0; i < 3; ++i) CHECK(gradient_of(ddp(here(at::ones({1})), 1)) == 2);
    model->again = nullptr;
  });
}

TEST_CASE("gradients that were dropped do not make a parameter used") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Forked model;
    set_weights(model, 1);
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    const at::Tensor x = wave({3, 4}, group.rank());
    {
      const auto guard = ddp.no_sync();
      ddp(x, true).sum().backward();
    }
    if (group.rank() == 0) model->forward(x, true).sum().backward();
    ddp.zero_grad();
    ddp(x, false).sum().backward();
    CHECK_FALSE(model->right->weight.grad().defined());
    CHECK(same_on_all_ranks(group, model->left->weight.grad()));
  });
}

TEST_CASE("mixed precision: a module that calls its wrapper again, and an evaluation with other values in between") {
  struct NestedImpl : PairImpl {
    at::Tensor forward(const at::Tensor& x, int depth) { return plain(depth == 0 ? x : wrapper(x, depth - 1)) * scale; }
    at::Tensor scale = register_parameter("scale", at::ones({4}));
    std::function<at::Tensor(const at::Tensor&, int)> wrapper;
  };
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Twins<NestedImpl> twins(group, {.mixed_precision = {.param_dtype = at::kBFloat16}});
    twins.model->wrapper = [&](const at::Tensor& x, int depth) { return (*twins.ddp)(x, depth); };
    twins.alone->wrapper = [&](const at::Tensor& x, int depth) { return twins.alone->forward(x, depth); };
    const at::Tensor loss = loss_of((*twins.ddp)(twins.x(0), 2).to(at::kFloat));
    CHECK((twins.model->scale.scalar_type() == at::kFloat));
    {
      const at::NoGradGuard no_grad;
      const at::Tensor own = twins.model->scale.detach();
      twins.model->scale.set_data(here(at::full({4}, 100.0F)));
      (void)(*twins.ddp)(twins.x(1), 0);
      twins.model->scale.set_data(own);
    }
    loss.backward();
    loss_of(twins.alone->forward(twins.x(0), 2)).backward();
    const auto found = twins.model->parameters(), expected = twins.alone->parameters();
    for (std::size_t i = 0; i < found.size(); ++i) {
      CAPTURE(i);
      at::Tensor mean = expected[i].grad().clone();
      group.all_reduce(mean, ReduceOp::avg);
      CHECK((found[i].grad() - mean).abs().max().item<double>() <= 0.05 * mean.abs().max().item<double>());
    }
    twins.model->wrapper = nullptr;
    twins.alone->wrapper = nullptr;
  });
}

TEST_CASE("a backward behind the end of its wrapper is refused: nobody would average it") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    torch::nn::Linear model(2, 1);
    move_here(*model);
    const at::Tensor x = here(at::ones({2, 2})).requires_grad_();
    const auto loss_of_temporary = [&] {
      DistributedDataParallel ddp(model, group);
      return ddp(x).sum();
    };
    const at::Tensor loss = loss_of_temporary();
    CHECK_ERROR(error_of([&] { loss.backward({}, /*retain_graph=*/true); }), ErrorKind::invalid_argument,
                "a wrapper that has been destroyed since");
    CHECK(!model->weight.grad().defined());
    CHECK(torch::autograd::grad({loss}, {x})[0].defined());  // no gradients of parameters
    model->forward(x).sum().backward();
    CHECK(model->weight.grad().defined());
  });
}

}  // namespace outputs_test
