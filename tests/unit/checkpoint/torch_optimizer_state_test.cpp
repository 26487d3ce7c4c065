// The state of optimizers goes to PyTorch and back. optimizer_oracle.py describes the cases and their files.
#include "lockstep/train/checkpoint/torch_optimizer_state.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/train/checkpoint/module_state.h"
#include "lockstep/train/checkpoint/optimizer_kinds.h"
#include "lockstep/train/checkpoint/optimizer_state.h"
#include "lockstep/train/checkpoint/state_digest.h"
#include "lockstep/train/checkpoint/torch_files.h"
#include "lockstep/train/optim/zero_redundancy_optimizer.h"
#include "tests/support/command.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

namespace torch_optimizer_state_test {

using namespace lockstep;
using namespace lockstep::testing;
using namespace torch::optim;

namespace {

constexpr int kSteps = 5;

using Groups = std::vector<OptimizerParamGroup>;
using Make = std::function<std::unique_ptr<Optimizer>(Groups)>;

struct Case {
  std::string name;
  Make make;       // with the case's options
  Make make_bare;  // with others
  int groups = 1;
};

template <class Kind, class Options>
Case case_of(const char* name, const Options& options, int groups) {
  const auto with = [](const Options& chosen) {
    return [chosen](const Groups& given) { return std::make_unique<Kind>(given, chosen); };
  };
  return {name, with(options), with(Options(0.9)), groups};
}

std::vector<Case> cases() {
  using Betas = std::tuple<double, double>;
  return {
      case_of<SGD>("sgd", SGDOptions(0.05).weight_decay(0.01), 2),
      case_of<SGD>("sgd_momentum", SGDOptions(0.05).momentum(0.9).dampening(0.1), 2),
      case_of<SGD>("sgd_nesterov", SGDOptions(0.05).momentum(0.8).nesterov(true), 1),
      case_of<Adam>("adam", AdamOptions(0.01).betas(Betas(0.8, 0.99)).weight_decay(0.1), 2),
      case_of<Adam>("adam_amsgrad", AdamOptions(0.01).amsgrad(true).eps(1e-6), 1),
      case_of<AdamW>("adamw", AdamWOptions(0.01).weight_decay(0.05), 2),
      case_of<RMSprop>("rmsprop", RMSpropOptions(0.01).alpha(0.9), 2),
      case_of<RMSprop>("rmsprop_centered", RMSpropOptions(0.01).centered(true).eps(1e-3), 1),
      case_of<RMSprop>("rmsprop_momentum", RMSpropOptions(0.01).momentum(0.5).weight_decay(0.01), 2),
      case_of<Adagrad>("adagrad", AdagradOptions(0.1).lr_decay(0.01).initial_accumulator_value(0.1), 2),
      case_of<LBFGS>("lbfgs", LBFGSOptions(0.5).max_iter(4).history_size(6), 1),
      case_of<LBFGS>("lbfgs_wolfe", LBFGSOptions().max_iter(3).history_size(3).line_search_fn("strong_wolfe"), 1),
  };
}

struct Training {
  Training(std::int64_t inputs, std::int64_t hidden, std::int64_t outputs, const Make& make, int groups)
      : model(torch::nn::Linear(inputs, hidden), torch::nn::Tanh(), torch::nn::Linear(hidden, outputs)) {
    const auto parameters = model->parameters();
    Groups all;
    if (groups == 1) {
      all.emplace_back(parameters);
    } else {
      all.emplace_back(std::vector{parameters[0], parameters[2]});
      all.emplace_back(std::vector{parameters[1], parameters[3]});
    }
    optimizer = make(all);
    if (groups == 2) optimizer->param_groups()[1].options().set_lr(0.02);
  }
  void train(const at::Tensor& x, const at::Tensor& y) {
    for (std::int64_t step = 0; step < x.size(0); ++step) {
      optimizer->step([&] {
        optimizer->zero_grad();
        at::Tensor loss = (model->forward(x[step]) - y[step]).pow(2).mean();
        loss.backward();
        return loss;
      });
    }
  }
  std::map<std::string, at::Tensor> state() const {
    Checkpoint checkpoint;
    add_module(checkpoint, *model, "");
    return checkpoint.tensors;
  }
  std::string digest() { return sha256_of(*model, *optimizer); }

  torch::nn::Sequential model;
  std::unique_ptr<Optimizer> optimizer;
};

// Of the sizes of a model that is stored.
Training training_like(const Checkpoint& file, const Make& make, int groups) {
  const at::Tensor first = file.tensors.at("model.0.weight"), last = file.tensors.at("model.2.weight");
  return {first.size(1), first.size(0), last.size(0), make, groups};
}

TorchValue whole_run(const Training& training, const at::Tensor& x, const at::Tensor& y) {
  return {TorchValue::Dict{{"model", torch_state_dict(training.state())},
                           {"optimizer", torch_state_dict(*training.optimizer)},
                           {"epoch", {std::int64_t{3}}},
                           {"x", internal::torch_value("x", x)},
                           {"y", internal::torch_value("y", y)}}};
}

std::int64_t random_size() { return at::randint(1, 8, {}).item<std::int64_t>(); }

// Writes what optimizer_oracle.py reads.
void make_files(const std::string& folder) {
  int seed = 100;
  for (const Case& each : cases()) {
    torch::manual_seed(static_cast<std::uint64_t>(seed++));
    const std::int64_t inputs = random_size(), hidden = random_size(), outputs = random_size();
    Training training(inputs, hidden, outputs, each.make, each.groups);
    const at::Tensor x = at::randn({2 * kSteps, 6, inputs}), y = at::randn({2 * kSteps, 6, outputs});
    training.train(x.narrow(0, 0, kSteps), y.narrow(0, 0, kSteps));
    auto& options = training.optimizer->param_groups()[0].options();
    options.set_lr(options.get_lr() * 0.7);
    // Where they lie in memory when they are read again: kernels round by alignment.
    const at::Tensor later_x = x.narrow(0, kSteps, kSteps).clone(), later_y = y.narrow(0, kSteps, kSteps).clone();
    const std::string path = folder + ("/" + each.name);
    write_torch_file(path + ".pt", whole_run(training, later_x, later_y));
    training.train(later_x, later_y);
    save_torch_file(path + ".after.pt", training.state());
  }
}

int oracle(const char* mode, const std::string& folder) {
  return run_command({LOCKSTEP_PYTHON, "-B", LOCKSTEP_OPTIMIZER_ORACLE, mode, folder}).exit_code;
}

bool has_pytorch() {
  static const bool is_there = lockstep::has_pytorch(LOCKSTEP_PYTHON);
  if (!is_there) skip("PyTorch is not installed");
  return is_there;
}

// A model of one Linear, and what a file says of its optimizer.
struct Small {
  torch::nn::Linear model{3, 2};
  void step(Optimizer& optimizer) {
    optimizer.zero_grad();
    model(at::ones({4, 3})).pow(2).mean().backward();
    optimizer.step();
  }
};

using Dict = TorchValue::Dict;
using List = TorchValue::List;

Dict& dict_of(TorchValue& value) {
  if (std::holds_alternative<std::nullptr_t>(value.value)) value.value = Dict{};
  return std::get<Dict>(value.value);
}
TorchValue& entry(TorchValue& value, const TorchValue::Key& key) {
  for (auto& [name, item] : dict_of(value)) {
    if (name == key) return item;
  }
  return dict_of(value).emplace_back(key, TorchValue{}).second;
}
TorchValue& group(TorchValue& value) { return std::get<List>(entry(value, "param_groups").value).at(0); }
TorchValue& state(TorchValue& value, std::int64_t parameter, const char* field) {
  return entry(entry(entry(value, "state"), parameter), field);
}

// Of a training that has gone on from the file of a case.
std::map<std::string, at::Tensor> state_after(const TemporaryDirectory& folder, const Case& each) {
  const std::string path = folder / (each.name + ".pt");
  const Checkpoint file = load_torch_file(path);
  Training training = training_like(file, each.make_bare, each.groups);
  load_module(file, *training.model);
  load_torch_optimizer(path, *training.optimizer, "optimizer");
  training.train(file.tensors.at("x"), file.tensors.at("y"));
  return training.state();
}

}  // namespace

TEST_CASE("training goes on in libtorch from where PyTorch has left it" * needs("pytorch")) {
  if (!has_pytorch()) return;
  const TemporaryDirectory folder;
  REQUIRE(oracle("make", folder.path()) == 0);
  for (const Case& each : cases()) {
    CAPTURE(each.name);
    const Checkpoint after = load_torch_file(folder / (each.name + ".after.pt"));
    for (const auto& [name, tensor] : state_after(folder, each)) {
      // A line search amplifies how numbers are rounded.
      const double tolerance = each.name == "lbfgs_wolfe" ? 1e-5 : 1e-6;
      CHECK(at::allclose(tensor, after.tensors.at(name), tolerance, tolerance));
    }
  }
}

TEST_CASE("training goes on in PyTorch from where libtorch has left it" * needs("pytorch")) {
  if (!has_pytorch()) return;
  const TemporaryDirectory folder;
  make_files(folder.path());
  CHECK(oracle("check", folder.path()) == 0);
}

TEST_CASE("a state dict that libtorch has written comes back, bit for bit, with its options") {
  const TemporaryDirectory folder;
  make_files(folder.path());
  for (const Case& each : cases()) {
    CAPTURE(each.name);
    const Checkpoint after = load_torch_file(folder / (each.name + ".after.pt"));
    for (const auto& [name, tensor] : state_after(folder, each)) CHECK(at::equal(tensor, after.tensors.at(name)));
  }
}

TEST_CASE("optimizers without any state, and parameters that had no gradient") {
  const TemporaryDirectory folder;
  const std::string path = folder / "a.pt";
  for (const Case& each : cases()) {
    CAPTURE(each.name);
    Training fresh(2, 3, 4, each.make, 1), other(2, 3, 4, each.make_bare, 1);
    write_torch_file(path, torch_state_dict(*fresh.optimizer));
    other.train(at::ones({1, 5, 2}), at::ones({1, 5, 4}));
    load_torch_optimizer(path, *other.optimizer);
    load_module({.tensors = fresh.state()}, *other.model, "");
    CHECK(other.digest() == fresh.digest());
  }
  Small small;
  Adam adam(small.model->parameters());
  small.model->bias.set_requires_grad(false);
  small.step(adam);
  write_torch_file(path, torch_state_dict(adam));
  Adam loaded(small.model->parameters());
  load_torch_optimizer(path, loaded);
  CHECK(loaded.state().size() == 1);
  CHECK(sha256_of(*small.model, loaded) == sha256_of(*small.model, adam));
}

TEST_CASE("what PyTorch may write besides") {
  const TemporaryDirectory folder;
  const std::string path = folder / "a.pt";
  Small small;
  SGD sgd(small.model->parameters(), SGDOptions(0.1));
  // Numbers of parameters are only names; old files say None where there is no state, and numbers may be tensors.
  TorchValue dict = torch_state_dict(sgd);
  entry(group(dict), "params").value = List{{std::int64_t{7}}, {std::string("bias")}};
  entry(group(dict), "lr") = internal::torch_value("lr", at::full({}, 0.25));
  entry(group(dict), "momentum").value = std::int64_t{0};
  entry(group(dict), "foreach").value = true;
  state(dict, 7, "momentum_buffer") = internal::torch_value("", at::full({2, 3}, 2.0, at::kDouble));
  entry(entry(entry(dict, "state"), "bias"), "momentum_buffer").value = nullptr;
  write_torch_file(path, {Dict{{"optimizers", {List{{nullptr}, dict}}}, {"a.b", {Dict{{"c", dict}}}}}});
  for (const char* key : {"optimizers.1", "a.b.c"}) {
    SGD loaded(small.model->parameters(), SGDOptions(0.1).momentum(0.9));
    load_torch_optimizer(path, loaded, key);
    const auto& options = dynamic_cast<const SGDOptions&>(loaded.param_groups()[0].options());
    CHECK(options.lr() == 0.25);
    CHECK(options.momentum() == 0);
    REQUIRE(loaded.state().size() == 1);
    const auto& buffer = dynamic_cast<const SGDParamState&>(*loaded.state().begin()->second).momentum_buffer();
    CHECK(at::equal(buffer, at::full({2, 3}, 2.0)));
  }
  // Steps were plain numbers once.
  Adam adam(small.model->parameters());
  small.step(adam);
  dict = torch_state_dict(adam);
  state(dict, 0, "step").value = std::int64_t{1};
  write_torch_file(path, dict);
  Adam loaded(small.model->parameters());
  load_torch_optimizer(path, loaded);
  CHECK(sha256_of(*small.model, loaded) == sha256_of(*small.model, adam));
}

TEST_CASE("what does not fit is refused with all differences, and nothing has changed") {
  const TemporaryDirectory folder;
  const std::string path = folder / "a.pt";
  Small small;
  Adam adam(small.model->parameters(), AdamOptions(0.1));
  small.step(adam);
  const std::string before = sha256_of(*small.model, adam);
  const TorchValue good = torch_state_dict(adam);
  const auto refused = [&](const TorchValue& dict, Optimizer& optimizer, const char* key = "") {
    write_torch_file(path, dict);
    Error error = error_of([&] { load_torch_optimizer(path, optimizer, key); });
    CHECK(sha256_of(*small.model, adam) == before);
    CHECK(contains(error.what(), path));
    return error;
  };
  const auto kind = ErrorKind::invalid_argument;
  CHECK_ERROR(refused(good, adam, "optimizer"), kind, "has no entry 'optimizer': it has 'state', 'param_groups'");
  CHECK_ERROR(refused({Dict{{"model", {Dict{}}}}}, adam, "model"), kind,
              "'model' is not the state dict of an optimizer", "has no entries", "give the key");
  CHECK_ERROR(refused({2.5}, adam), kind, "it is not the state dict of an optimizer", "holds a float");
  AdamW adamw(small.model->parameters());
  SGD sgd(small.model->parameters(), 0.1);
  CHECK_ERROR(refused(good, adamw), kind, "the state dict is for Adam; this optimizer, which is unchanged, is AdamW");
  CHECK_ERROR(refused(good, sgd), kind, "for Adam; this optimizer", "is SGD");
  TorchValue bad = good;
  dict_of(group(bad)).front().first = "rho";
  CHECK_ERROR(refused(bad, adam), kind, "for another kind, with the options rho betas", "is Adam");

  bad = good;
  entry(group(bad), "maximize").value = true;
  entry(group(bad), "eps").value = std::string("x");
  entry(group(bad), "params").value = List{{std::int64_t{0}}};
  std::get<List>(entry(bad, "param_groups").value).push_back({Dict{}});
  CHECK_ERROR(refused(bad, adam), kind, "does not fit the optimizer, which is unchanged:",
              "param_groups.0.maximize is True in the checkpoint, which libtorch does not support",
              "param_groups.0.eps is a str", "param_groups.0.params has 1 parameters in the checkpoint, 2 in",
              "param_groups has 2 groups in the checkpoint, 1 in the optimizer");

  bad = good;
  state(bad, 0, "exp_avg") = internal::torch_value("", at::zeros({2}));
  state(bad, 0, "step").value = 1.5;
  dict_of(entry(entry(bad, "state"), 1)).pop_back();
  state(bad, 1, "sum").value = std::int64_t{0};
  state(bad, 7, "sum").value = std::int64_t{0};
  entry(group(bad), "amsgrad").value = true;
  CHECK_ERROR(refused({Dict{{"o", bad}}}, adam, "o"), kind, "the checkpoint's 'o.state.' does not fit the optimizer",
              "different: o.state.0.exp_avg is Float [2] in the checkpoint, Float [2, 3] in the optimizer",
              "different: o.state.0.step is 1.5 in the checkpoint, an integer in the optimizer",
              "missing from the checkpoint: o.state.1.exp_avg_sq",
              "missing from the checkpoint: o.state.1.max_exp_avg_sq", "unexpected in the checkpoint: o.state.1.sum",
              "unexpected in the checkpoint: o.state.7");
  write_torch_file(path, {Dict{{"o", good}}});
  load_torch_optimizer(path, adam, "o");
  CHECK(sha256_of(*small.model, adam) == before);
}

TEST_CASE("a file of LBFGS cannot make libtorch read beyond its lists") {
  const TemporaryDirectory folder;
  const std::string path = folder / "a.pt";
  Training training(3, 2, 1, cases()[10].make, 1);
  training.train(at::ones({2, 4, 3}), at::ones({2, 4, 1}));
  const TorchValue good = torch_state_dict(*training.optimizer);
  const auto refused = [&](const TorchValue& dict) {
    write_torch_file(path, dict);
    return error_of([&] { load_torch_optimizer(path, *training.optimizer); });
  };
  TorchValue bad = good;
  std::get<List>(state(bad, 0, "old_stps").value).pop_back();
  CHECK_ERROR(refused(bad), ErrorKind::invalid_argument, "missing from the checkpoint: state.0.old_stps.");
  bad = good;
  entry(group(bad), "history_size").value = std::int64_t{1};
  CHECK_ERROR(refused(bad), ErrorKind::invalid_argument, "unexpected in the checkpoint: state.0.old_dirs.1");
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-1}, INT64_MAX}) {
    entry(group(bad), "history_size").value = size;
    CHECK_ERROR(refused(bad), ErrorKind::invalid_argument, "history_size is", "must be from 1 to 1048576");
  }
  bad = good;
  entry(group(bad), "max_eval").value = nullptr;
  CHECK_ERROR(refused(bad), ErrorKind::invalid_argument, "max_eval is None");
  // There is always a place for each direction.
  bad = good;
  state(bad, 0, "al").value = List{};
  write_torch_file(path, bad);
  load_torch_optimizer(path, *training.optimizer);
  training.train(at::ones({1, 4, 3}), at::zeros({1, 4, 1}));
}

TEST_CASE("a sharded optimizer goes to PyTorch and back by a plain one") {
  const TemporaryDirectory folder;
  const std::string path = folder / "a.pt";
  run_worlds_or_throw(2, [&](const World& world) {
    Small small, again;
    ZeroRedundancyOptimizer<Adam> sharded(small.model->parameters(), world, AdamOptions(0.1));
    ZeroRedundancyOptimizer<Adam> other(again.model->parameters(), world, AdamOptions(0.2));
    small.step(sharded);
    CHECK_ERROR(error_of([&] { torch_state_dict(sharded); }), ErrorKind::invalid_argument, "needs a plain optimizer");
    CHECK_ERROR(error_of([&] { load_torch_optimizer(path, sharded); }), ErrorKind::invalid_argument, "a sharded");
    sharded.consolidate_state_dict();
    if (world.rank() == 0) {
      Adam plain(small.model->parameters());
      load_optimizer(sharded.state_dict(), plain);
      write_torch_file(path, torch_state_dict(plain));
    }
    world.barrier();
    Adam plain(again.model->parameters());
    load_torch_optimizer(path, plain);
    Checkpoint checkpoint;
    add_optimizer(checkpoint, plain);
    other.load_state_dict(checkpoint);
    other.consolidate_state_dict();
    if (world.rank() == 0) CHECK(sha256_of(other.state_dict()) == sha256_of(sharded.state_dict()));
  });
}

TEST_CASE("other optimizers are refused") {
  struct Foreign : Optimizer {
    using Optimizer::Optimizer;
    at::Tensor step(LossClosure) override { return {}; }
  };
  Small small;
  Foreign foreign(small.model->parameters(), std::make_unique<SGDOptions>(0.1));
  CHECK_ERROR(error_of([&] { torch_state_dict(foreign); }), ErrorKind::invalid_argument, "LBFGS can be stored");
}

}  // namespace torch_optimizer_state_test
