// Forwards and backwards in other orders than one after the other: what is synchronised, and what is left alone.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/unit/ddp/models.h"

namespace schedules_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(bool is_linear = false) : is_linear(is_linear) {
    first = register_module("first", torch::nn::Linear(6, 5));
    last = register_module("last", torch::nn::Linear(5, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = first->forward(x);
    const at::Tensor y = last->forward(is_linear ? h : at::tanh(h));
    auxiliary = h.square().mean();
    return y;
  }
  bool is_linear;
  at::Tensor auxiliary;
  torch::nn::Linear first = nullptr, last = nullptr;
};
TORCH_MODULE(Mlp);

// A wrapped model and its twin, which is averaged by hand.
struct Twins {
  Twins(const ProcessGroup& over, const DdpOptions& options = {}, bool is_linear = false)
      : group(over), model(is_linear), alone(is_linear) {
    set_weights(model, 1);
    set_weights(alone, 1);
    ddp.emplace(model, group, options);
  }
  void zero_grad() {
    ddp->zero_grad();
    alone->zero_grad();
  }
  // The twin's gradients so far, averaged.
  void check_averages() {
    for (auto& parameter : alone->parameters()) {
      if (parameter.grad().defined()) group.all_reduce(parameter.grad(), ReduceOp::avg);
    }
    check_equal();
  }
  void check_equal() {
    const auto found = model->parameters(), expected = alone->parameters();
    for (std::size_t i = 0; i < found.size(); ++i) {
      CAPTURE(i);
      REQUIRE(found[i].grad().defined() == expected[i].grad().defined());
      if (found[i].grad().defined()) CHECK(at::allclose(found[i].grad(), expected[i].grad(), 1e-5, 1e-8));
    }
  }
  at::Tensor x(int which) const { return wave({4, 6}, 10 * which + group.rank()); }

  const ProcessGroup& group;
  Mlp model, alone;
  std::optional<DistributedDataParallel<Mlp>> ddp;
};

at::Tensor loss_of(const at::Tensor& y) { return y.square().mean(); }

at::Tensor gradient_of_input(const at::Tensor& y, const at::Tensor& x, bool create_graph) {
  return torch::autograd::grad({y}, {x}, {}, create_graph, create_graph)[0];
}

}  // namespace

TEST_CASE("autograd::grad through the wrapper touches no gradient, and training goes on") {
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      Twins twins(group);
      for (int step = 0; step < 3; ++step) {
        twins.zero_grad();
        const at::Tensor x = twins.x(step).requires_grad_();
        const at::Tensor attack = gradient_of_input(loss_of((*twins.ddp)(x)), x, false);
        CHECK(at::allclose(attack, gradient_of_input(loss_of(twins.alone->forward(x)), x, false)));
        CHECK_FALSE(twins.model->first->weight.grad().defined());
        loss_of((*twins.ddp)(x.detach() + attack)).backward();
        loss_of(twins.alone->forward(x.detach() + attack)).backward();
        twins.check_averages();
      }
      // On one rank only.
      if (group.rank() == 0) {
        const at::Tensor x = twins.x(7).requires_grad_();
        CHECK(gradient_of_input((*twins.ddp)(x).sum(), x, false).defined());
      }
      twins.zero_grad();
      loss_of((*twins.ddp)(twins.x(8))).backward();
      loss_of(twins.alone->forward(twins.x(8))).backward();
      twins.check_averages();
    });
  }
}

TEST_CASE("gradients stay on their rank until the last guard of no_sync() is gone, whichever that is") {
  for (const bool first_goes_first : {true, false}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      Twins twins(group);
      using Guard = NoSync;
      std::unique_ptr<Guard> guards[] = {std::unique_ptr<Guard>(new Guard(twins.ddp->no_sync())),
                                         std::unique_ptr<Guard>(new Guard(twins.ddp->no_sync()))};
      const auto train = [&](int step) {
        loss_of((*twins.ddp)(twins.x(step))).backward();
        loss_of(twins.alone->forward(twins.x(step))).backward();
      };
      guards[first_goes_first ? 0 : 1].reset();
      train(0);
      twins.check_equal();
      guards[first_goes_first ? 1 : 0].reset();
      train(1);
      twins.check_averages();
    });
  }
}

TEST_CASE("gradient penalties are averaged, also without the loss itself, and for models without a nonlinearity") {
  for (const bool is_linear : {false, true}) {
    for (const bool with_loss : {true, false}) {
      run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
        Twins twins(group, {.find_unused_parameters = true}, is_linear);
        for (int step = 0; step < 2; ++step) {
          twins.zero_grad();
          const auto train = [&](auto& model) {
            const at::Tensor x = twins.x(step).requires_grad_();
            const at::Tensor y = model.forward(x).sum();
            const at::Tensor penalty = gradient_of_input(y, x, true).square().sum();
            (with_loss ? y + penalty : penalty).backward();
          };
          train(*twins.ddp);
          train(*twins.alone);
          twins.check_averages();
        }
      });
    }
  }
}

TEST_CASE("the bare module may be trained, attacked and evaluated beside its wrapper, by one rank alone") {
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      Twins twins(group);
      for (int step = 0; step < 3; ++step) {
        twins.zero_grad();
        const at::Tensor y = (*twins.ddp)(twins.x(step));
        loss_of(y).backward();
        loss_of(twins.alone->forward(twins.x(step))).backward();
        twins.check_averages();
        if (group.rank() == 0) {  // while the wrapper's output lives
          twins.zero_grad();
          twins.model->forward(twins.x(9)).sum().backward();
          twins.alone->forward(twins.x(9)).sum().backward();
          twins.check_equal();
        }
      }
      // What it leaves in .grad is averaged with what comes next, as after no_sync().
      twins.zero_grad();
      if (group.rank() == 1) {
        twins.model->forward(twins.x(4)).sum().backward();
        twins.alone->forward(twins.x(4)).sum().backward();
      }
      loss_of((*twins.ddp)(twins.x(5))).backward();
      loss_of(twins.alone->forward(twins.x(5))).backward();
      twins.check_averages();
    });
  }
}

TEST_CASE("a backward that passes by the wrapper's forward is an error, since nobody has averaged it") {
  const auto errors = run_group(2, Over::arena, [](const ProcessGroup& group) {
    Twins twins(group);
    const at::Tensor kept = (*twins.ddp)(twins.x(0));
    twins.model->forward(twins.x(1)).sum().backward();
    (void)(*twins.ddp)(twins.x(2));
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK_THROWS_WITH_AS(std::rethrow_exception(error),
                         doctest::Contains("without going through the last forward pass of DistributedDataParallel"),
                         Error);
  }
}

TEST_CASE("several forwards and backwards in any order are synchronised one by one") {
  for (const bool keeps_order : {true, false}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      Twins twins(group);
      for (int step = 0; step < 3; ++step) {
        twins.zero_grad();
        const auto train = [&](auto& model) {
          const at::Tensor first = loss_of(model.forward(twins.x(step)));
          const at::Tensor second = loss_of(model.forward(twins.x(step + 5)));
          (keeps_order ? first : second).backward();
          (keeps_order ? second : first).backward();
        };
        train(*twins.ddp);
        train(*twins.alone);
        twins.check_averages();
      }
    });
  }
}

TEST_CASE("a forward that never gets its backward, or throws, changes nothing") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Twins twins(group);
    at::Tensor kept;
    for (int step = 0; step < 4; ++step) {
      twins.zero_grad();
      if (step == 1) kept = (*twins.ddp)(twins.x(20 + step));
      if (step == 3 && group.rank() == 0) {
        const auto guard = twins.ddp->no_sync();
        (void)(*twins.ddp)(twins.x(20 + step));
      }
      if (step == 2) CHECK_THROWS((*twins.ddp)(at::ones({2, 2})));
      loss_of((*twins.ddp)(twins.x(step))).backward();
      loss_of(twins.alone->forward(twins.x(step))).backward();
      twins.check_averages();
    }
  });
}

TEST_CASE("a rank that leaves out a backward, or makes one more, is told at the next one") {
  const auto expect_told = [](auto&& does) {
    const auto errors = run_group(2, Over::arena, [&](const ProcessGroup& group) {
      Twins twins(group);
      for (int step = 0; step < 3; ++step) {
        twins.zero_grad();
        does(twins, group.rank(), step);
      }
      group.barrier();  // on a device, errors may come later
    });
    for (const auto& error : errors) {
      REQUIRE(error != nullptr);
      const std::string text = error_of([&] { std::rethrow_exception(error); }).what();
      CHECK(text.find("a rank skipped a backward pass through ddp(...), ran an extra one") != std::string::npos);
      CHECK(text.find("of backward 2") != std::string::npos);
    }
  };
  expect_told([](Twins& twins, int rank, int step) {
    const at::Tensor loss = loss_of((*twins.ddp)(twins.x(step)));
    if (rank == 0 || step != 1) loss.backward();
  });
  expect_told([](Twins& twins, int rank, int step) {
    try {
      loss_of((*twins.ddp)(rank == 1 && step == 1 ? at::ones({2, 2}) : twins.x(step))).backward();
    } catch (const c10::Error&) {
    }
  });
  expect_told([](Twins& twins, int rank, int step) {
    const at::Tensor loss = loss_of((*twins.ddp)(twins.x(step)));
    if (rank == 1 && step == 1) loss.backward({}, true);
    loss.backward();
  });
}

TEST_CASE("outputs that are views may be changed in place") {
  struct ViewImpl : torch::nn::Module {
    ViewImpl() { layer = register_module("layer", torch::nn::Linear(6, 6)); }
    at::Tensor forward(const at::Tensor& x) { return layer->forward(x).view({2, -1}); }
    torch::nn::Linear layer = nullptr;
  };
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto model = std::make_shared<ViewImpl>(), alone = std::make_shared<ViewImpl>();
    set_weights(model, 1);
    set_weights(alone, 1);
    DistributedDataParallel ddp(model, group);
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      alone->zero_grad();
      const at::Tensor x = wave({4, 6}, step + group.rank());
      ddp(x).relu_().sum().backward();
      alone->forward(x).relu_().sum().backward();
      group.all_reduce(alone->layer->weight.grad(), ReduceOp::avg);
      CHECK(at::equal(model->layer->weight.grad(), alone->layer->weight.grad()));
    }
  });
}

TEST_CASE("backward in another thread, and a loss that the model keeps beside its output") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Twins twins(group);
    for (int step = 0; step < 3; ++step) {
      twins.zero_grad();
      const at::Tensor loss = loss_of((*twins.ddp)(twins.x(step))) + twins.model->auxiliary;
      std::thread([&] { loss.backward(); }).join();
      (loss_of(twins.alone->forward(twins.x(step))) + twins.alone->auxiliary).backward();
      twins.check_averages();
    }
    CHECK_FALSE(group.is_shared(at::empty({1 << 16})));  // the thread's own memory again
  });
}

TEST_CASE("forwards of one backward weigh together") {
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      Mlp model, alone;
      set_weights(model, 1);
      set_weights(alone, 1);
      DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
      const at::Tensor all = wave({64, 6}, 3);
      const at::Tensor mine = all.narrow(0, group.rank() * 32, 32);
      for (const std::int64_t split : {16, 30, 2}) {
        const std::int64_t cut = group.rank() == 0 ? split : 32 - split;
        ddp.zero_grad();
        const at::Tensor first = ddp(mine.narrow(0, 0, cut)), second = ddp(mine.narrow(0, cut, 32 - cut));
        ((first.square().sum() + second.square().sum()) / 32).backward();
        alone->zero_grad();
        (alone->forward(all).square().sum() / 64).backward();
        const auto found = model->parameters(), expected = alone->parameters();
        for (std::size_t i = 0; i < found.size(); ++i) {
          CHECK(at::allclose(found[i].grad(), expected[i].grad(), 1e-5, 1e-8));
        }
      }
      // Gradients that are not zeroed keep what was averaged before.
      std::vector<at::Tensor> before = gradients_of(model->parameters());
      ddp(mine.narrow(0, 0, group.rank() == 0 ? 5 : 11)).sum().backward();
      const std::vector<at::Tensor> after = gradients_of(model->parameters());
      ddp.zero_grad();
      ddp(mine.narrow(0, 0, group.rank() == 0 ? 5 : 11)).sum().backward();
      for (std::size_t i = 0; i < before.size(); ++i) {
        CHECK(at::allclose(after[i], before[i] + model->parameters()[i].grad(), 1e-5, 1e-7));
        CHECK(same_on_all_ranks(group, after[i]));
      }
    });
  }
}

TEST_CASE("a gradient from outside the wrapper has no weight") {
  const auto errors = run_group(2, Over::arena, [](const ProcessGroup& group) {
    Twins twins(group, {.weighting = Weighting::samples});
    for (const bool zeroes : {true, false}) {
      twins.model->forward(twins.x(0)).sum().backward();
      if (zeroes) twins.model->zero_grad(/*set_to_none=*/false);
      (*twins.ddp)(twins.x(1)).sum().backward();
      CHECK(same_on_all_ranks(group, twins.model->last->weight.grad()));
      twins.zero_grad();
    }
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK_THROWS_WITH_AS(std::rethrow_exception(error), doctest::Contains("its weight is unknown"), Error);
  }
}

TEST_CASE("mixed precision: parameters have their own type whenever the program can look") {
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      Mlp model;
      set_weights(model, 1);
      DistributedDataParallel ddp(model, group, {.mixed_precision = {.param_dtype = at::kBFloat16}});
      const auto x = [&](int step) { return wave({4, 6}, 10 * step + group.rank()); };
      const auto is_own = [&] {
        for (const auto& [name, tensor] : ddp.state_dict()) {
          if (tensor.scalar_type() != at::kFloat) return false;
        }
        return model->first->weight.scalar_type() == at::kFloat;
      };
      const at::Tensor y = ddp(x(0));  // its graph lives on, without a backward
      CHECK((y.scalar_type() == at::kBFloat16));
      CHECK(is_own());
      const at::Tensor before = model->first->weight.detach().clone();
      {
        const at::NoGradGuard no_grad;
        model->first->weight.add_(1);  // what an optimizer does
      }
      CHECK_THROWS(ddp(at::ones({2, 2})));
      CHECK(is_own());
      ddp.zero_grad();
      const at::Tensor first = ddp(x(1)), second = ddp(x(2));
      loss_of(first).backward();
      CHECK(is_own());
      const at::Tensor once = model->first->weight.grad().clone();
      CHECK((once.scalar_type() == at::kFloat));
      loss_of(second).backward({}, true);
      CHECK(is_own());
      const at::Tensor twice = model->first->weight.grad() - once;
      loss_of(second).backward();  // of a graph that was kept
      CHECK(same_on_all_ranks(group, model->first->weight.grad()));
      CHECK(at::allclose(model->first->weight.grad(), once + 2 * twice, 1e-2, 1e-5));
      CHECK(at::allclose(model->first->weight, before + 1));
      const at::Tensor z = x(3).requires_grad_();
      CHECK((gradient_of_input(ddp(z).sum(), z, false).scalar_type() == at::kFloat));
      CHECK(is_own());
      // A loss that uses a parameter itself, in its own type.
      ddp.zero_grad();
      (loss_of(ddp(x(4))).to(at::kFloat) + model->first->weight.square().sum()).backward();
      CHECK(same_on_all_ranks(group, model->first->weight.grad()));
      CHECK(at::allclose(model->first->weight.grad(), 2 * model->first->weight, 2e-2, 2e-2));
    });
  }
}

TEST_CASE("a model that is frozen for a while is passed through") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Twins twins(group);
    for (int step = 0; step < 4; ++step) {
      const bool is_frozen = step % 2 == 1;
      for (auto& parameter : twins.model->parameters()) parameter.requires_grad_(!is_frozen);
      twins.zero_grad();
      const at::Tensor x = twins.x(step).requires_grad_();
      loss_of((*twins.ddp)(x)).backward();
      CHECK(x.grad().defined());
      if (is_frozen) continue;
      loss_of(twins.alone->forward(twins.x(step))).backward();
      twins.check_averages();
    }
  });
}

TEST_CASE("a function that gives no gradient for a parameter contributes zeros") {
  struct Nothing : torch::autograd::Function<Nothing> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
      return {at::Tensor()};
    }
  };
  struct HalfImpl : torch::nn::Module {
    HalfImpl() {
      layer = register_module("layer", torch::nn::Linear(3, 3));
      scale = register_parameter("scale", at::ones({3}));
    }
    at::Tensor forward(const at::Tensor& x, bool learns) {
      return layer->forward(x) * (learns ? scale : Nothing::apply(scale));
    }
    torch::nn::Linear layer = nullptr;
    at::Tensor scale;
  };
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      const auto model = std::make_shared<HalfImpl>(), alone = std::make_shared<HalfImpl>();
      set_weights(model, 1);
      set_weights(alone, 1);
      DistributedDataParallel ddp(model, group);
      const at::Tensor x = wave({2, 3}, 1);
      ddp(x, group.rank() == 0).sum().backward();
      alone->forward(x, true).sum().backward();
      CHECK(at::allclose(model->scale.grad(), alone->scale.grad() / 2));
    });
  }
}

}  // namespace schedules_test
