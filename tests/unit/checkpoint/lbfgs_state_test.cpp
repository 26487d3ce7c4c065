// LBFGS keeps one state for all parameters, lists in it.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <string>

#include "lockstep/train/checkpoint/optimizer_state.h"
#include "lockstep/train/checkpoint/save.h"
#include "lockstep/train/checkpoint/state_digest.h"
#include "lockstep/train/optim/zero_redundancy_optimizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"
#include "tests/support/temporary_directory.h"

namespace lbfgs_state_test {

using namespace lockstep;
using namespace lockstep::testing;
using torch::optim::LBFGS;
using torch::optim::LBFGSOptions;
using torch::optim::LBFGSParamState;
using torch::optim::SGD;

namespace {

LBFGSOptions few() { return LBFGSOptions(0.5).max_iter(3).history_size(5); }

// A fit of its own input; step n has data of its own.
template <class Forward>
void step(LBFGS& optimizer, const Forward& forward, int n) {
  const at::Tensor x = at::linspace(-1, 1, 12).view({4, 3}) * n;
  optimizer.step([&] {
    optimizer.zero_grad();
    at::Tensor loss = (forward(x) - x.sum(1, true).sin()).pow(2).mean();
    loss.backward();
    return loss;
  });
}

struct Fit {
  explicit Fit(const LBFGSOptions& options = few()) : optimizer(model->parameters(), options) {}
  void train(int from, int to) {
    for (int n = from; n < to; ++n)
      step(
          optimizer, [&](const at::Tensor& x) { return model(x); }, n);
  }
  std::string digest() { return sha256_of(*model, optimizer); }
  Checkpoint saved() const {
    Checkpoint checkpoint;
    add_optimizer(checkpoint, optimizer);
    for (auto& [name, tensor] : checkpoint.tensors) tensor = tensor.clone();
    return checkpoint;
  }
  LBFGSParamState& state() { return dynamic_cast<LBFGSParamState&>(*optimizer.state().begin()->second); }

  torch::nn::Linear model{3, 2};
  LBFGS optimizer;
};

}  // namespace

TEST_CASE("training with LBFGS goes on bit for bit, whenever it is interrupted") {
  for (const bool searches : {false, true}) {
    for (int steps = 0; steps < 5; ++steps) {
      CAPTURE(steps);
      LBFGSOptions options = few();
      if (searches) options.line_search_fn("strong_wolfe");
      Fit fit(options), other(options);
      fit.train(1, 1 + steps);
      other.train(3, 4);
      const TemporaryDirectory folder;
      save(folder.path(), {.model = fit.model, .optimizer = fit.optimizer});
      load(folder.path(), {.model = other.model, .optimizer = other.optimizer});
      CHECK(other.digest() == fit.digest());
      fit.train(1 + steps, 4 + steps);
      other.train(1 + steps, 4 + steps);
      CHECK(other.digest() == fit.digest());
    }
  }
}

TEST_CASE("ranks save and load a model that LBFGS trains") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    DistributedDataParallel ddp(torch::nn::Linear(3, 2), world), other(torch::nn::Linear(3, 2), world);
    LBFGS optimizer(ddp.parameters(), few()), other_optimizer(other.parameters(), few());
    const auto train = [](auto& model, LBFGS& by, int n) {
      step(
          by, [&](const at::Tensor& x) { return model(x); }, n);
    };
    for (int n = 1; n < 4; ++n) train(ddp, optimizer, n);
    save(folder.path(), {.model = ddp, .optimizer = optimizer, .step = 3}, world);
    load(folder.path(), {.model = other, .optimizer = other_optimizer}, world);
    train(ddp, optimizer, 4);
    train(other, other_optimizer, 4);
    CHECK(sha256_of(*other.module(), other_optimizer) == sha256_of(*ddp.module(), optimizer));
  });
}

TEST_CASE("what is stored of LBFGS: counts, the last step, and the history as far as there is one") {
  Fit fit;
  CHECK(fit.saved().tensors.size() == 1);  // the learning rate
  fit.train(1, 2);
  const Checkpoint saved = fit.saved();
  CHECK(saved.metadata.at("optimizer.type") == "LBFGS");
  CHECK(saved.tensors.at("optimizer.0.n_iter").item<std::int64_t>() == fit.state().n_iter());
  CHECK(saved.tensors.at("optimizer.0.func_evals").item<std::int64_t>() == fit.state().func_evals());
  CHECK(saved.tensors.at("optimizer.0.t").item<double>() == fit.state().t());
  CHECK(saved.tensors.at("optimizer.0.d").sizes().vec() == std::vector<std::int64_t>{8});
  CHECK(saved.tensors.contains("optimizer.0.old_dirs.0"));
  CHECK_FALSE(saved.tensors.contains("optimizer.0.old_dirs.4"));
  CHECK_FALSE(saved.tensors.contains("optimizer.0.al.4"));
  // The first gradient is none: LBFGS has counted, and no more.
  Fit done(few().tolerance_grad(1e9)), other;
  done.train(1, 2);
  CHECK(done.state().n_iter() == 0);
  load_optimizer(done.saved(), other.optimizer);
  CHECK(other.state().func_evals() == 1);
  CHECK(other.state().n_iter() == 0);
}

TEST_CASE("a state of LBFGS that does not fit is refused with all differences, and nothing has changed") {
  Fit fit;
  fit.train(1, 3);
  const std::string before = fit.digest();
  const auto refused = [&](const Checkpoint& bad, torch::optim::Optimizer& optimizer) {
    const Error error = error_of([&] { load_optimizer(bad, optimizer); });
    CHECK(fit.digest() == before);
    return error;
  };
  Checkpoint bad = fit.saved();
  bad.tensors.erase("optimizer.0.H_diag");
  bad.tensors.erase("optimizer.0.ro.2");
  bad.tensors["optimizer.0.d"] = at::zeros({7});
  bad.tensors["optimizer.1.d"] = at::zeros({8});
  bad.tensors["optimizer.0.t"] = at::zeros({});
  CHECK_ERROR(refused(bad, fit.optimizer), ErrorKind::invalid_argument,
              "missing from the checkpoint: optimizer.0.H_diag", "missing from the checkpoint: optimizer.0.ro.2",
              "different: optimizer.0.d is Float [7] in the checkpoint, Float [8] in the optimizer",
              "different: optimizer.0.t is Float [] in the checkpoint, Double [] in the optimizer",
              "unexpected in the checkpoint: optimizer.1.d");
  LBFGS shorter(fit.model->parameters(), few().history_size(1));
  CHECK_ERROR(refused(fit.saved(), shorter), ErrorKind::invalid_argument,
              "unexpected in the checkpoint: optimizer.0.old_dirs.1");
  LBFGS longer(fit.model->parameters(), few().history_size(50));
  load_optimizer(fit.saved(), longer);
  CHECK(dynamic_cast<LBFGSParamState&>(*longer.state().begin()->second).al()->size() == 50);
  SGD sgd(fit.model->parameters(), 0.1);
  CHECK_ERROR(refused(fit.saved(), sgd), ErrorKind::invalid_argument, "the state of the LBFGS optimizer", "is SGD");
}

TEST_CASE("LBFGS is not spread over ranks") {
  struct Derived : LBFGS {
    using LBFGS::LBFGS;
  };
  static_assert(ElementwiseOptimizer<SGD> && !ElementwiseOptimizer<LBFGS> && !ElementwiseOptimizer<Derived>);
  Fit fit;
  fit.train(1, 2);
  run_worlds_or_throw(2, [&](const World& world) {
    torch::nn::Linear model(3, 2);
    ZeroRedundancyOptimizer<SGD> sharded(model->parameters(), world, torch::optim::SGDOptions(0.1));
    CHECK_ERROR(error_of([&] { sharded.load_state_dict(fit.saved()); }), ErrorKind::invalid_argument,
                "the state of the LBFGS optimizer", "this optimizer is SGD");
  });
}

}  // namespace lbfgs_state_test
