// What a shard's callback may do with gradients in lockstep mode, and what becomes of them.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/sole_owner.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/ddp/uneven_inputs/join.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"
#include "tests/unit/ddp/shard_worlds.h"

namespace shard_gradients_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

constexpr std::int64_t kRows = 200, kColumns = 150;  // large enough to be reduced where they lie

// Parameters by the bare function of them that is the loss.
struct BareImpl : torch::nn::Module {
  explicit BareImpl(int parameters = 2, at::ScalarType type = at::kFloat) {
    for (int i = 0; i < parameters; ++i) {
      const std::string name{'w', static_cast<char>('0' + i)};
      weights.push_back(register_parameter(name, wave({kRows * kColumns}, i).to(type)));
    }
  }
  at::Tensor forward(const std::function<at::Tensor(const Tensors&)>& of_weights) { return of_weights(weights); }
  Tensors weights;
};
TORCH_MODULE(Bare);

at::Tensor factor(const Shard& shard) { return wave({kRows, kColumns}, shard.index + 0.5); }

using LossOfWeights = std::function<at::Tensor(const Tensors&, const at::Tensor& factor)>;

Tensors gradients_after_one_step(const ProcessGroup& group, const LossOfWeights& loss_of, int parameters = 2) {
  Bare model(parameters);
  DistributedDataParallel ddp(model, group, kLockstep);
  ddp.for_each_shard([&](const Shard& shard) {
    ddp([&](const Tensors& weights) { return loss_of(weights, factor(shard)); }).backward();
    return 0.0;
  });
  Tensors gradients;
  for (const at::Tensor& weight : model->weights) {
    gradients.push_back(weight.grad());
    if (gradients.back().defined()) {
      gradients.back() = gradients.back().clone();
      CHECK(owns_its_memory(weight.grad()));
    }
  }
  return gradients;
}

at::Tensor mean_factor() {
  Tensors level;
  for (int shard = 0; shard < kShards; ++shard) level.push_back(factor({.index = shard}));
  for (; level.size() > 1; level.resize(level.size() / 2)) {
    for (std::size_t i = 0; i < level.size() / 2; ++i) level[i] = (level[2 * i] + level[2 * i + 1]) / 2;
  }
  return level.front().flatten();
}

void check_gradients(const LossOfWeights& loss_of, const Tensors& expected) {
  for (const Over transport : {Over::arena, Over::links}) {
    for (const int ranks : {1, 2, 8}) {
      INFO(ranks, " ranks over ", transport == Over::arena ? "memory" : "links");
      run_group_or_throw(ranks, transport, [&](const ProcessGroup& group) {
        check_same(gradients_after_one_step(group, loss_of, static_cast<int>(expected.size())), expected);
      });
    }
  }
}

}  // namespace

TEST_CASE("parameters whose gradients are the same memory each get the mean") {
  const at::Tensor mean = mean_factor();
  check_gradients(
      [](const Tensors& w, const at::Tensor& by) {
        return ((w[0].view({kRows, kColumns}) + w[1].view({kRows, kColumns})) * by).sum();
      },
      {mean, mean});
  check_gradients(
      [](const Tensors& w, const at::Tensor& by) {
        return ((w[0].view({kRows, kColumns}) + w[1].view({kRows, kColumns}) - w[2].view({kRows, kColumns})) * by)
            .sum();
      },
      {mean, mean, -mean});
}

TEST_CASE("what else refers to a gradient's memory keeps its numbers") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Bare model;
    DistributedDataParallel ddp(model, group, kLockstep);
    Tensors handles, views, expected, losses;
    ddp.for_each_shard([&](const Shard& shard) {
      const at::Tensor loss = ddp([&](const Tensors& w) { return (w[0] * w[1] * factor(shard).flatten()).sum(); });
      losses.push_back(loss);  // and its graph
      torch::autograd::backward({loss}, {}, /*retain_graph=*/true);
      handles.push_back(model->weights[0].grad());
      views.push_back(model->weights[1].grad().view({kRows, kColumns}));
      for (const at::Tensor& weight : model->weights) expected.push_back(weight.grad().clone());
      return 0.0;
    });
    for (std::size_t i = 0; i < handles.size(); ++i) {
      CHECK(same_bits(handles[i], expected[2 * i]));
      CHECK(same_bits(views[i].flatten(), expected[2 * i + 1]));
    }
    const Tensors means{model->weights[0].grad(), model->weights[1].grad()};
    const Tensors copies{means[0].clone(), means[1].clone()};
    ddp.for_each_shard([&](const Shard& shard) {  // which leaves the last step's gradients to those who kept them
      ddp([&](const Tensors& w) { return (w[0] * 3 * factor(shard).flatten()).sum(); }).backward();
      return 0.0;
    });
    check_same(means, copies);
    for (std::size_t i = 0; i < losses.size(); ++i) {
      const auto again = torch::autograd::grad({losses[i]}, {model->weights[0]});
      CHECK(same_bits(again[0], expected[2 * i]));
    }
  });
}

TEST_CASE("a gradient that belongs to a graph, is a view of an input, or lies otherwise than its parameter") {
  const at::Tensor mean = mean_factor();
  for (const int ranks : {1, 4}) {
    run_group_or_throw(ranks, Over::arena, [&](const ProcessGroup& group) {
      Bare model(1);
      DistributedDataParallel ddp(model, group, kLockstep);
      const auto step = [&](const std::function<at::Tensor(const Shard&)>& gradient_of) {
        ddp.for_each_shard([&](const Shard& shard) {
          model->weights[0].mutable_grad() = gradient_of(shard);
          return 0.0;
        });
        CHECK(same_bits(model->weights[0].grad(), mean));
        CHECK_FALSE(model->weights[0].grad().requires_grad());
      };
      Tensors inputs;
      step([&](const Shard& shard) { return inputs.emplace_back(factor(shard)).flatten(); });
      for (int i = 0; i < kShards / ranks; ++i) {
        const int shard = group.rank() * (kShards / ranks) + i;
        CHECK(same_bits(inputs[static_cast<std::size_t>(i)], factor({.index = shard})));
      }
      step([](const Shard& shard) { return factor(shard).flatten().requires_grad_() * 1; });
      step([](const Shard& shard) {  // every second number of a larger one
        return at::stack({factor(shard).flatten(), at::zeros({kRows * kColumns})}, 1).select(1, 0);
      });
      step([](const Shard& shard) { return at::_neg_view(-factor(shard).flatten()); });
    });
  }
}

TEST_CASE("parameters without elements have gradients without elements") {
  struct EmptyImpl : torch::nn::Module {
    EmptyImpl() {
      none = register_parameter("none", at::zeros({0, 3}));
      some = register_parameter("some", at::ones({3}));
    }
    at::Tensor forward(double by) { return none.sum() + (some * by).sum(); }
    at::Tensor none, some;
  };
  for (const Over transport : {Over::arena, Over::links}) {
    for (const int ranks : {1, 2}) {
      run_group_or_throw(ranks, transport, [](const ProcessGroup& group) {
        const auto model = std::make_shared<EmptyImpl>();
        DistributedDataParallel ddp(model, group, kLockstep);
        ddp.for_each_shard([&](const Shard& shard) {
          ddp(shard.index).backward();
          return 0.0;
        });
        CHECK(model->none.grad().sizes() == at::IntArrayRef{0, 3});
        CHECK(at::equal(model->some.grad(), at::full({3}, 3.5)));
      });
    }
  }
}

TEST_CASE("sparse gradients and those of another type are refused by name on all ranks, and the group of one goes on") {
  const auto texts_of = [](int ranks, const std::function<void(const ProcessGroup&)>& body) {
    std::vector<std::string> texts;
    for (const auto& error : run_group(ranks, Over::arena, body)) {
      texts.emplace_back(error_of([&] { std::rethrow_exception(error); }).what());
    }
    return texts;
  };
  const auto sparse = [](const ProcessGroup& group) {
    const torch::nn::Embedding model(torch::nn::EmbeddingOptions(5, 3).sparse(true));
    DistributedDataParallel ddp(model, group, kLockstep);
    ddp.for_each_shard([&](const Shard& shard) {
      ddp(at::full({2}, shard.index % 5, at::kLong)).sum().backward();
      return 0.0;
    });
  };
  for (const std::string& text : texts_of(2, sparse)) {
    CHECK(contains(text, "the gradient of weight on rank"));
    CHECK(contains(text, "is sparse, which cannot be reduced"));
  }
  for (const std::string& text : texts_of(1, [&](const ProcessGroup& group) {
         const Error error = error_of([&] { sparse(group); });
         group.barrier();
         throw error;
       })) {
    CHECK(contains(text, "is sparse"));
  }
  const auto other_type = [](const ProcessGroup& group) {
    Bare model(1);
    DistributedDataParallel ddp(model, group, kLockstep);
    ddp.for_each_shard([&](const Shard& shard) {
      model->weights[0].mutable_grad() =
          shard.index == 5 ? model->weights[0].detach().to(at::kDouble) : model->weights[0].detach().clone();
      return 0.0;
    });
  };
  for (const std::string& text : texts_of(2, other_type)) {
    CHECK(contains(text, "the gradient of w0 on rank 1 has another dtype than the parameter"));
  }
}

namespace {

// The numbers that went in; its backward throws, if that is asked for.
struct Failing : torch::autograd::Function<Failing> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input, bool fails) {
    context->saved_data["fails"] = fails;
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    if (context->saved_data.at("fails").toBool()) throw std::runtime_error("no backward");
    return {gradients[0], {}};
  }
};

// Its backward comes to `last`, then fails on the way to `first`.
struct FragileImpl : torch::nn::Module {
  FragileImpl() {
    first = register_module("first", torch::nn::Linear(4, 6));
    last = register_module("last", torch::nn::Linear(6, 2));
  }
  at::Tensor forward(const at::Tensor& x, bool fails) {
    return last->forward(Failing::apply(first->forward(x), fails));
  }
  torch::nn::Linear first = nullptr, last = nullptr;
};
TORCH_MODULE(Fragile);

enum class Does { train, skip, fail, fail_and_zero, fail_and_train, zero_and_train, train_and_fail };

void train_once(DistributedDataParallel<Fragile>& ddp, const Shard& shard, bool fails) {
  ddp(wave({3, 4}, shift_of(shard)), fails).square().sum().backward();
}

void do_it(DistributedDataParallel<Fragile>& ddp, const Shard& shard, Does what) {
  const auto fail = [&] {
    CHECK_THROWS_WITH(train_once(ddp, shard, true), "no backward");
    CHECK(ddp.module()->last->weight.grad().defined());  // or the test says nothing
  };
  if (what == Does::train || what == Does::train_and_fail) train_once(ddp, shard, false);
  if (what != Does::train && what != Does::skip) fail();
  if (what == Does::fail_and_zero || what == Does::zero_and_train) ddp.zero_grad();
  if (what == Does::fail_and_train || what == Does::zero_and_train) train_once(ddp, shard, false);
}

// Gradients of two steps in whose first one two shards do something else than to train.
Tensors with(const ProcessGroup& group, Does what) {
  Fragile model;
  set_weights(model);
  DistributedDataParallel ddp(model, group, kLockstep);
  Tensors found;
  for (int step = 0; step < 2; ++step) {
    ddp.for_each_shard([&](const Shard& shard) {
      const bool is_other = step == 0 && (shard.index == 2 || shard.index == 5);
      do_it(ddp, shard, is_other ? what : Does::train);
      return 0.0;
    });
    for (const auto& parameter : model->parameters()) found.push_back(parameter.grad().clone());
  }
  return found;
}

}  // namespace

TEST_CASE("a backward that fails leaves nothing behind if its callback goes on") {
  for (const int ranks : {1, 2, 8}) {
    run_group_or_throw(ranks, Over::arena, [](const ProcessGroup& group) {
      const Tensors skipped = with(group, Does::skip), trained = with(group, Does::train);
      CHECK_FALSE(same_bits(skipped[0], trained[0]));
      check_same(with(group, Does::fail), skipped);
      check_same(with(group, Does::fail_and_zero), skipped);
      check_same(with(group, Does::zero_and_train), trained);
    });
  }
  for (const Does what : {Does::fail_and_train, Does::train_and_fail}) {
    for (const auto& error : run_group(2, Over::arena, [&](const ProcessGroup& group) { with(group, what); })) {
      const std::string text = error_of([&] { std::rethrow_exception(error); }).what();
      CHECK(contains(text, "lockstep mode: a backward pass of shard "));
      CHECK(contains(text, " failed, its callback continued, and its partial gradients were added to those of other"));
    }
  }
}

TEST_CASE("gradients of gradients, and those that autograd only returns") {
  check_any_world([](const ProcessGroup& group) {
    Fragile model;
    set_weights(model);
    DistributedDataParallel ddp(model, group, kLockstep);
    ddp.for_each_shard([&](const Shard& shard) {
      const at::Tensor x = wave({3, 4}, shard.index).requires_grad_();
      const at::Tensor loss = ddp(x, false).square().sum();
      const auto of_x = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
      const auto of_weight =
          torch::autograd::grad({loss}, {model->first->weight}, {}, /*retain_graph=*/true, /*create_graph=*/true);
      CHECK_FALSE(model->first->weight.grad().defined());
      (loss + of_x[0].square().sum() + of_weight[0].square().sum()).backward();
      return loss.item<double>();
    });
    Tensors found;
    for (const auto& parameter : model->parameters()) found.push_back(parameter.grad().clone());
    return found;
  });
}

TEST_CASE("autograd's grad alone leaves no gradient, and a backward with create_graph leaves none that has a graph") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Fragile model;
    DistributedDataParallel ddp(model, group, kLockstep);
    ddp.for_each_shard([&](const Shard& shard) {
      torch::autograd::grad({ddp(wave({3, 4}, shard.index), false).sum()}, {model->first->weight});
      return 0.0;
    });
    for (const auto& parameter : model->parameters()) CHECK_FALSE(parameter.grad().defined());
    ddp.for_each_shard([&](const Shard& shard) {
      torch::autograd::backward({ddp(wave({3, 4}, shard.index), false).square().sum()}, {}, true, true);
      CHECK(model->first->weight.grad().requires_grad());
      return 0.0;
    });
    for (const auto& parameter : model->parameters()) CHECK_FALSE(parameter.grad().requires_grad());
  });
}

TEST_CASE("a joined rank and a step under no_sync() are refused; no_sync() in a callback changes nothing") {
  const auto errors = run_group(2, Over::arena, [](const ProcessGroup& group) {
    Fragile model;
    DistributedDataParallel ddp(model, group, kLockstep);
    const std::vector<int> batches(group.rank() == 0 ? 1 : 2);
    join(group, batches, [&](int) {
      ddp.for_each_shard([&](const Shard& shard) {
        train_once(ddp, shard, false);
        return 0.0;
      });
    });
  });
  for (const auto& error : errors) {
    CHECK(contains(error_of([&] { std::rethrow_exception(error); }).what(),
                   "lockstep mode: a rank in join() has no more batches"));
  }
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Fragile model;
    set_weights(model);
    DistributedDataParallel ddp(model, group, kLockstep);
    {
      const auto guard = ddp.no_sync();
      CHECK(contains(
          error_of([&] { ddp.for_each_shard([](const Shard&) { return 0.0; }); }).what(),
          "for_each_shard() cannot be called under no_sync(); to accumulate gradients, run several backward passes"));
    }
    Tensors found;
    for (const bool quiet : {true, false}) {
      ddp.for_each_shard([&](const Shard& shard) {
        if (quiet) {
          const auto guard = ddp.no_sync();
          train_once(ddp, {.index = shard.index}, false);
        } else {
          train_once(ddp, {.index = shard.index}, false);
        }
        train_once(ddp, {.index = shard.index + 20}, false);
        return 0.0;
      });
      found.push_back(model->first->weight.grad().clone());
    }
    CHECK(same_bits(found[0], found[1]));
  });
}

}  // namespace shard_gradients_test
