#include "lockstep/train/optim/zero_redundancy_optimizer.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <numeric>

#include "lockstep/train/checkpoint/optimizer_state.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"
#include "tests/support/wave.h"

namespace zero_redundancy_test {

using namespace lockstep;
using namespace lockstep::testing;
using torch::optim::Adagrad;
using torch::optim::AdagradOptions;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::RMSprop;
using torch::optim::RMSpropOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

static_assert(ElementwiseOptimizer<Adam>);
static_assert(!ElementwiseOptimizer<torch::optim::LBFGS>);

namespace {

using Shapes = std::vector<std::vector<std::int64_t>>;
const Shapes kShapes{{3}, {40, 25}, {25}, {64, 16}, {8, 4, 3}, {1}, {30, 30}};

bool equal(const std::vector<at::Tensor>& left, const std::vector<at::Tensor>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const auto& a, const auto& b) { return a.scalar_type() == b.scalar_type() && at::equal(a, b); });
}

template <class Optimizer>
void step_with_gradients(Optimizer& optimizer, const std::vector<at::Tensor>& parameters, int step) {
  set_gradients(parameters, step * 5);
  if (step % 3 == 1) parameters[2].mutable_grad() = at::Tensor();  // took no part in this step
  optimizer.step();
}

template <class Optimizer, class Options>
void check_like_plain(const Options& options) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run_group_or_throw(ranks, ranks == 3 ? Over::links : Over::arena, [&](const ProcessGroup& group) {
      const auto expected = make_parameters(kShapes), parameters = make_parameters(kShapes);
      Optimizer plain(std::vector{OptimizerParamGroup(expected)}, options);
      ZeroRedundancyOptimizer<Optimizer> sharded(parameters, group, options);
      for (int step = 0; step < 5; ++step) {
        step_with_gradients(plain, expected, step);
        step_with_gradients(sharded, parameters, step);
        CHECK(equal(parameters, expected));
      }
    });
  }
}

std::size_t state_bytes(const torch::optim::Optimizer& optimizer) {
  Checkpoint state;
  add_optimizer(state, optimizer);
  return std::accumulate(state.tensors.begin(), state.tensors.end(), std::size_t{0},
                         [](std::size_t sum, const auto& item) { return sum + item.second.nbytes(); });
}

// The errors of all ranks.
void check_refused(int ranks, const std::function<void(const ProcessGroup&)>& body, const std::string& text) {
  for (const auto& error : run_group(ranks, Over::arena, body)) {
    CHECK_ERROR(error_of([&] { std::rethrow_exception(error); }), ErrorKind::invalid_argument, text);
  }
}

// A program's own.
class SignSgd : public torch::optim::Optimizer {
 public:
  SignSgd(const std::vector<OptimizerParamGroup>& groups, const SGDOptions& options)
      : Optimizer(groups, std::make_unique<SGDOptions>(options)) {}
  at::Tensor step(LossClosure = nullptr) override {
    for (auto& group : param_groups_) {
      for (const at::Tensor& parameter : group.params()) {
        if (parameter.grad().defined()) parameter.detach().sub_(parameter.grad().sign(), group.options().get_lr());
      }
    }
    return {};
  }
};

using ZeroSgd = ZeroRedundancyOptimizer<SGD>;
using ZeroAdam = ZeroRedundancyOptimizer<Adam>;

}  // namespace

TEST_CASE("every rank has the parameters of a plain optimizer, bit for bit") {
  check_like_plain<SGD>(SGDOptions(0.1));
  check_like_plain<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
  check_like_plain<Adam>(AdamOptions(0.01).amsgrad(true));
  check_like_plain<AdamW>(AdamWOptions(0.01));
  check_like_plain<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true));
  check_like_plain<Adagrad>(AdagradOptions(0.01).initial_accumulator_value(0.1));
  check_like_plain<SGD>(0.1);  // options made of a learning rate
}

TEST_CASE("a program's own optimizer is spread too, but cannot be stored") {
  check_like_plain<SignSgd>(SGDOptions(0.1));
  check_refused(
      2,
      [](const ProcessGroup& group) {
        ZeroRedundancyOptimizer<SignSgd> sharded(make_parameters(kShapes), group, SGDOptions(0.1));
        sharded.consolidate_state_dict();
      },
      "only SGD, Adam, AdamW, RMSprop, Adagrad and LBFGS can be stored");
}

TEST_CASE("a rank keeps about its share of the state") {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    run_group_or_throw(ranks, Over::arena, [](const ProcessGroup& group) {
      const Shapes shapes(16, {50, 40});
      const auto whole = make_parameters(shapes), parameters = make_parameters(shapes);
      Adam plain(whole, AdamOptions(0.01));
      ZeroAdam sharded(parameters, group, AdamOptions(0.01));
      step_with_gradients(plain, whole, 0);
      step_with_gradients(sharded, parameters, 0);
      const auto all = static_cast<double>(state_bytes(plain));
      const auto mine = static_cast<double>(state_bytes(sharded.local_optimizer()));
      CHECK(mine <= all / group.size() * 1.13);  // 16 parameters, on 3 ranks: 6, 5, 5
      CHECK(mine >= all / group.size() * 0.87);
      CHECK(sharded.state().empty());
    });
  }
}

TEST_CASE("groups have options of their own, which may change, also by a scheduler") {
  run_group_or_throw(3, Over::arena, [](const ProcessGroup& group) {
    const auto expected = make_parameters(kShapes), parameters = make_parameters(kShapes);
    const auto groups_of = [](const std::vector<at::Tensor>& all) {
      return std::vector<OptimizerParamGroup>{
          {{all[0], all[1], all[2]}, std::make_unique<AdamOptions>(AdamOptions(0.5).weight_decay(0.1))},
          {{all.begin() + 3, all.end()}}};
    };
    Adam plain(groups_of(expected), AdamOptions(0.02));
    ZeroAdam sharded(groups_of(parameters), group, AdamOptions(0.02));
    torch::optim::StepLR plain_schedule(plain, 2, 0.5), schedule(sharded, 2, 0.5);
    for (int step = 0; step < 6; ++step) {
      for (torch::optim::Optimizer* optimizer :
           {static_cast<torch::optim::Optimizer*>(&plain), static_cast<torch::optim::Optimizer*>(&sharded)}) {
        auto& options = static_cast<AdamOptions&>(optimizer->param_groups()[1].options());
        if (step == 2) options.weight_decay(0.3);
        if (step == 4) options.lr(1e-3);  // what AdamOptions begin with, so it could pass for not set
      }
      step_with_gradients(plain, expected, step);
      step_with_gradients(sharded, parameters, step);
      plain_schedule.step();
      schedule.step();
      CHECK(equal(parameters, expected));
    }
    sharded.zero_grad();
    for (const at::Tensor& parameter : parameters) CHECK_FALSE(parameter.grad().defined());
  });
}

TEST_CASE("a group that is added later is spread too, and state that was there stays where it is") {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run_group_or_throw(ranks, Over::arena, [](const ProcessGroup& group) {
      const auto expected = make_parameters(kShapes), parameters = make_parameters(kShapes);
      const std::vector<at::Tensor> plain_late = make_parameters({{9, 9}, {2}}), late = make_parameters({{9, 9}, {2}});
      SGD plain(expected, SGDOptions(0.1).momentum(0.9));
      ZeroSgd sharded(parameters, group, SGDOptions(0.1).momentum(0.9));
      step_with_gradients(plain, expected, 0);
      step_with_gradients(sharded, parameters, 0);
      const auto options = [] { return std::make_unique<SGDOptions>(SGDOptions(0.3)); };
      plain.add_param_group(OptimizerParamGroup(plain_late, options()));
      sharded.add_param_group(OptimizerParamGroup(late, options()));
      for (int step = 1; step < 4; ++step) {
        set_gradients(plain_late, step);
        set_gradients(late, step);
        step_with_gradients(plain, expected, step);
        step_with_gradients(sharded, parameters, step);
        CHECK(equal(parameters, expected));
        CHECK(equal(late, plain_late));
      }
    });
  }
  // Adagrad makes its state when it is made.
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto parameters = make_parameters({{4, 4}, {3}}), expected = make_parameters({{4, 4}, {3}});
    Adagrad plain(expected, AdagradOptions(0.1));
    ZeroRedundancyOptimizer<Adagrad> sharded(std::vector{parameters[0]}, group, AdagradOptions(0.1));
    sharded.add_param_group(OptimizerParamGroup(std::vector{parameters[1]}));
    for (int step = 0; step < 2; ++step) {
      set_gradients(parameters, step);
      set_gradients(expected, step);
      plain.step();
      sharded.step();
    }
    CHECK(equal(parameters, expected));
  });
}

TEST_CASE("a closure gives the loss, once, on every rank, also on those without parameters") {
  run_group_or_throw(3, Over::arena, [](const ProcessGroup& group) {
    const auto parameters = make_parameters({{5, 5}, {5}});
    ZeroSgd sharded(parameters, group, SGDOptions(0.1));
    int calls = 0;
    const at::Tensor loss = sharded.step([&] {
      ++calls;
      sharded.zero_grad();
      at::Tensor sum = (parameters[0] + parameters[1]).square().sum();
      sum.backward();
      group.barrier();
      return sum;
    });
    CHECK(calls == 1);
    CHECK(loss.item<float>() > 0);
    CHECK_FALSE(sharded.step().defined());
  });
}

TEST_CASE("parameters may be of several types, and frozen ones are nobody's business") {
  run_group_or_throw(2, Over::links, [](const ProcessGroup& group) {
    std::vector<at::Tensor> expected = make_parameters({{6, 6}, {30}, {12}}), parameters;
    expected[1] = expected[1].detach().to(at::kDouble).set_requires_grad(true);
    expected[2] = expected[2].detach().to(at::kBFloat16).set_requires_grad(true);
    for (const at::Tensor& tensor : expected) parameters.push_back(tensor.detach().clone().set_requires_grad(true));
    const at::Tensor frozen = at::ones({4}, at::kFloat).mul(group.rank());
    parameters.push_back(frozen);
    Adam plain(expected, AdamOptions(0.1));
    ZeroAdam sharded(parameters, group, AdamOptions(0.1));
    for (int step = 0; step < 3; ++step) {
      set_gradients(expected, step);
      set_gradients({parameters.begin(), parameters.end() - 1}, step);
      plain.step();
      sharded.step();
    }
    CHECK(equal({parameters.begin(), parameters.end() - 1}, expected));
    CHECK(frozen.eq(group.rank()).all().item<bool>());
  });
}

TEST_CASE("state that four ranks saved goes on in two, in one plain optimizer, and back") {
  const auto train = [](auto& optimizer, const std::vector<at::Tensor>& parameters, int from, int to) {
    for (int step = from; step < to; ++step) step_with_gradients(optimizer, parameters, step);
  };
  const auto expected = make_parameters(kShapes);
  AdamW reference(expected, AdamWOptions(0.05));
  train(reference, expected, 0, 6);

  Checkpoint saved;
  std::vector<at::Tensor> values;
  run_group_or_throw(4, Over::arena, [&](const ProcessGroup& group) {
    const auto parameters = make_parameters(kShapes);
    ZeroRedundancyOptimizer<AdamW> sharded(parameters, group, AdamWOptions(0.05));
    train(sharded, parameters, 0, 3);
    sharded.consolidate_state_dict(2);
    if (group.rank() == 2) {
      saved = sharded.state_dict();
      for (const at::Tensor& parameter : parameters) values.push_back(parameter.detach().clone());
    } else {
      CHECK_ERROR(error_of([&] { (void)sharded.state_dict(); }), ErrorKind::invalid_argument,
                  "call consolidate_state_dict(" + std::to_string(group.rank()) + ") on all ranks");
    }
    train(sharded, parameters, 3, 4);
    CHECK_ERROR(error_of([&] { (void)sharded.state_dict(); }), ErrorKind::invalid_argument, "after the last step");
  });

  const auto restored = [&] {
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& value : values) parameters.push_back(value.clone().set_requires_grad(true));
    return parameters;
  };
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const auto parameters = restored();
    ZeroRedundancyOptimizer<AdamW> sharded(parameters, group, AdamWOptions(0.9));  // replaced by what was saved
    sharded.load_state_dict(saved);
    train(sharded, parameters, 3, 6);
    CHECK(equal(parameters, expected));
  });

  const auto alone = restored();
  AdamW plain(alone, AdamWOptions(0.9));
  load_optimizer(saved, plain);
  train(plain, alone, 3, 6);
  CHECK(equal(alone, expected));
  Checkpoint of_plain;
  add_optimizer(of_plain, plain);
  run_group_or_throw(3, Over::arena, [&](const ProcessGroup& group) {
    ZeroRedundancyOptimizer<AdamW> sharded(restored(), group, AdamWOptions(0.05));
    sharded.load_state_dict(of_plain);
    sharded.consolidate_state_dict(1);
    if (group.rank() != 1) return;
    CHECK(sharded.state_dict().metadata == of_plain.metadata);
    REQUIRE(sharded.state_dict().tensors.size() == of_plain.tensors.size());
    for (const auto& [name, tensor] : of_plain.tensors) CHECK(at::equal(sharded.state_dict().tensors.at(name), tensor));
  });
}

TEST_CASE("every kind's state survives") {
  const auto check = [](auto kind, const auto& options) {
    using Optimizer = typename decltype(kind)::type;
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      const auto expected = make_parameters(kShapes), parameters = make_parameters(kShapes);
      ZeroRedundancyOptimizer<Optimizer> one(expected, group, options), other(parameters, group, options);
      for (int step = 0; step < 2; ++step) step_with_gradients(one, expected, step);
      Checkpoint saved;
      for (const int to : {0, 1}) {
        one.consolidate_state_dict(to);
        if (group.rank() == to) saved = one.state_dict();
      }
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        parameters[i].detach().copy_(expected[i].detach());
      }
      other.load_state_dict(saved);
      step_with_gradients(one, expected, 2);
      step_with_gradients(other, parameters, 2);
      CHECK(equal(parameters, expected));
    });
  };
  check(std::type_identity<SGD>(), SGDOptions(0.1).momentum(0.9));
  check(std::type_identity<Adam>(), AdamOptions(0.1).amsgrad(true));
  check(std::type_identity<RMSprop>(), RMSpropOptions(0.1).momentum(0.9).centered(true));
  check(std::type_identity<Adagrad>(), AdagradOptions(0.1));
}

TEST_CASE("state that does not fit is refused on all ranks, and none has taken it") {
  Checkpoint saved;
  {
    const auto parameters = make_parameters(kShapes);
    Adam plain(parameters, AdamOptions(0.1));
    step_with_gradients(plain, parameters, 0);
    add_optimizer(saved, plain);
  }
  saved.tensors["optimizer.1.exp_avg"] = at::zeros({2});
  saved.tensors["optimizer.9.exp_avg"] = at::zeros({2});
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const auto expected = make_parameters(kShapes), parameters = make_parameters(kShapes);
    Adam plain(expected, AdamOptions(0.01));
    ZeroAdam sharded(parameters, group, AdamOptions(0.01));
    step_with_gradients(plain, expected, 0);
    step_with_gradients(sharded, parameters, 0);
    CHECK_ERROR(error_of([&] { sharded.load_state_dict(saved); }), ErrorKind::invalid_argument,
                "the state does not fit, and no rank has loaded it", "\nrank 1: ",
                "different: optimizer.1.exp_avg is Float [2] in the checkpoint, Float [40, 25] in the optimizer",
                "unexpected in the checkpoint: optimizer.9.exp_avg");
    CHECK_ERROR(error_of([&] { sharded.load_state_dict({}); }), ErrorKind::invalid_argument,
                "\nrank 0: ", "no optimizer under 'optimizer.'; this optimizer is Adam");
    step_with_gradients(plain, expected, 1);
    step_with_gradients(sharded, parameters, 1);
    CHECK(equal(parameters, expected));
  });
}

TEST_CASE("state of other groups is refused on all ranks, also on those without parameters") {
  run_group_or_throw(4, Over::arena, [](const ProcessGroup& group) {
    const auto parameters = make_parameters({{3}, {2}, {1}});
    const auto groups_of = [&](std::ptrdiff_t first) {
      return std::vector<OptimizerParamGroup>{{{parameters.begin(), parameters.begin() + first}},
                                              {{parameters.begin() + first, parameters.end()}}};
    };
    ZeroAdam saved(groups_of(1), group, AdamOptions(0.1)), other(groups_of(2), group, AdamOptions(0.2));
    set_gradients(parameters, 0);
    saved.step();
    for (int rank = 0; rank < group.size(); ++rank) saved.consolidate_state_dict(rank);
    Checkpoint state;
    add_optimizer(state, Adam(groups_of(1), AdamOptions(0.1)));
    if (group.rank() == 3) CHECK(saved.state_dict().metadata == state.metadata);
    const std::string text = "groups are [1, 2] in the checkpoint, [2, 1] in the optimizer";
    CHECK_ERROR(error_of([&] { other.load_state_dict(state); }), ErrorKind::invalid_argument, "no rank has loaded it",
                "\nrank 0: ", "\nrank 3: ", text);
    CHECK(other.param_groups()[0].options().get_lr() == 0.2);
    saved.load_state_dict(state);
    state.metadata.erase("optimizer.groups");
    other.load_state_dict(state);
    CHECK(other.param_groups()[0].options().get_lr() == 0.1);
  });
}

TEST_CASE("a parameter that is frozen is updated as long as it keeps its gradient, as with a plain optimizer") {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    run_group_or_throw(ranks, Over::arena, [&](const ProcessGroup& group) {
      const auto expected = make_parameters(kShapes), parameters = make_parameters(kShapes);
      SGD plain(expected, SGDOptions(0.1).momentum(0.9));
      ZeroRedundancyOptimizer<SGD> sharded(parameters, group, SGDOptions(0.1).momentum(0.9));
      const auto step = [&] {
        plain.step();
        sharded.step();
        CHECK(equal(parameters, expected));
      };
      for (const auto& each : {expected, parameters}) set_gradients(each, 0);
      step();
      for (std::size_t i = 0; i < kShapes.size(); i += 2) {
        for (const auto& each : {expected, parameters}) each[i].set_requires_grad(false);
      }
      step();
      for (const auto& each : {expected, parameters}) each[0].mutable_grad() = at::Tensor();
      step();
    });
  }
}

TEST_CASE("ranks that update different parameters are told which, though sizes fit") {
  const auto thrown = run_group(2, Over::arena, [](const ProcessGroup& group) {
    const auto parameters = make_parameters({{4}, {4}, {4}, {4}});
    ZeroRedundancyOptimizer<SGD> sharded(parameters, group, SGDOptions(0.1));
    parameters[group.rank() == 0 ? 2 : 3].set_requires_grad(false);
    sharded.step();
  });
  for (const auto& error : thrown) {
    CHECK_ERROR(error_of([&] { std::rethrow_exception(error); }), ErrorKind::desync,
                "ZeroRedundancyOptimizer of parameters 0-1 3", "ZeroRedundancyOptimizer of parameters 0-2");
  }
}

TEST_CASE("ranks that do not have the same parameters are told the first difference") {
  check_refused(
      3,
      [](const ProcessGroup& group) {
        const Shapes shapes = group.rank() == 2 ? Shapes{{3}, {6, 4}} : Shapes{{3}, {4, 6}};
        ZeroSgd sharded(make_parameters(shapes), group, SGDOptions(0.1));
      },
      "the parameters or options of rank 2 differ from those of rank 0. First difference: rank 0 has group 0 parameter "
      "1 [4, 6] "
      "Float strides [6, 1], rank 2 has group 0 parameter 1 [6, 4] Float strides [4, 1]. Give all ranks");
  check_refused(
      2,
      [](const ProcessGroup& group) {
        ZeroSgd sharded(group.rank() == 0 ? make_parameters({{3}}) : std::vector<at::Tensor>(), group, SGDOptions(0.1));
      },
      "rank 0 has group 0 of 1 parameters, rank 1 has group 0 of 0 parameters");
  check_refused(
      2,
      [](const ProcessGroup& group) {
        ZeroSgd sharded(make_parameters({{3}}), group, SGDOptions(group.rank() == 1 ? 0.25 : 0.5));
      },
      "rank 0 has group 0 options SGD lr 0.5 momentum 0 dampening 0 weight_decay 0 nesterov false, rank 1 has group 0 "
      "options SGD lr 0.25 momentum 0");
  check_refused(
      2,
      [](const ProcessGroup& group) {
        using torch::optim::Adam, torch::optim::AdamOptions;
        const double beta = group.rank() == 1 ? 0.5 : 0.75;
        ZeroRedundancyOptimizer<Adam> sharded(make_parameters({{3}}), group, AdamOptions(0.5).betas({beta, 0.875}));
      },
      "rank 0 has group 0 options Adam lr 0.5 betas 0.75 0.875 eps 1e-08 weight_decay 0 amsgrad false, rank 1 has "
      "group 0 options Adam lr 0.5 betas 0.5 0.875");
  check_refused(
      2,
      [](const ProcessGroup& group) {
        if (group.rank() == 0) {
          ZeroSgd sharded(make_parameters({{3}}), group, SGDOptions(0.5));
        } else {
          ZeroRedundancyOptimizer<torch::optim::Adam> sharded(make_parameters({{3}}), group,
                                                              torch::optim::AdamOptions(0.5));
        }
      },
      "rank 0 has group 0 options SGD lr 0.5");
  check_refused(
      2,
      [](const ProcessGroup& group) {
        std::vector<OptimizerParamGroup> groups(group.rank() == 0 ? 1 : 2, OptimizerParamGroup(make_parameters({{3}})));
        ZeroSgd sharded(groups, group, SGDOptions(0.5));
      },
      "rank 0 has 1 groups, rank 1 has 2 groups");
  check_refused(
      2,
      [](const ProcessGroup& group) {
        ZeroSgd sharded(make_parameters({{3}}), group, SGDOptions(0.1));
        const auto added = make_parameters({{group.rank() + 1}});
        CHECK_THROWS_AS(sharded.add_param_group(OptimizerParamGroup(added)), Error);
        sharded.step();  // it is unchanged
        sharded.add_param_group(OptimizerParamGroup(added));
      },
      "rank 0 has group 1 parameter 0 [1] Float strides [1], rank 1 has group 1 parameter 0 [2] Float strides [1]");
}

TEST_CASE("what cannot be is refused") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto refused = [&](const std::vector<at::Tensor>& parameters, const std::string& text) {
      CHECK_ERROR(error_of([&] { ZeroSgd(parameters, group, SGDOptions(0.1)); }), ErrorKind::invalid_argument, text);
    };
    refused({}, "the list of parameters is empty");
    const auto parameters = make_parameters({{3}, {2}});
    refused({parameters[0], parameters[1], parameters[0]},
            "group 0 parameter 2 is the same tensor as group 0 parameter 0; give each parameter once");
    refused({at::zeros({2, 2}).to_sparse()}, "group 0 parameter 0 has no dense memory");
    ZeroSgd sharded(parameters, group, SGDOptions(0.1));
    CHECK_ERROR(error_of([&] { sharded.consolidate_state_dict(2); }), ErrorKind::invalid_argument,
                "2 is not a rank of this group of 2");
    torch::optim::Optimizer& plain = sharded;
    plain.add_param_group(OptimizerParamGroup(make_parameters({{4}})));
    CHECK_ERROR(error_of([&] { sharded.step(); }), ErrorKind::invalid_argument,
                "it has 3 parameters, but only 2 are assigned to ranks");
    torch::serialize::OutputArchive written;
    CHECK_ERROR(error_of([&] { sharded.save(written); }), ErrorKind::invalid_argument, "use consolidate_state_dict()");
    torch::serialize::InputArchive read;
    CHECK_ERROR(error_of([&] { sharded.load(read); }), ErrorKind::invalid_argument, "use load_state_dict()");
  });
}

}  // namespace zero_redundancy_test
