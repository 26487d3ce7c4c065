#include "lockstep/train/checkpoint/module_state.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

// doctest's CHECK replaces the one of torch's logging.
#include <doctest/doctest.h>

#include <cmath>

#include "lockstep/train/checkpoint/optimizer_state.h"
#include "lockstep/train/checkpoint/random_state.h"
#include "lockstep/train/ddp/state_dict.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace module_state_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

struct Net : torch::nn::Module {
  explicit Net(int hidden = 5)
      : first(register_module("first", torch::nn::Linear(4, hidden))),
        norm(register_module("norm", torch::nn::BatchNorm1d(hidden))),
        last(register_module("last", torch::nn::Linear(torch::nn::LinearOptions(hidden, 2).bias(false)))) {}
  at::Tensor forward(const at::Tensor& x) { return last(norm(first(x)).relu()); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
};

struct Wrapped : torch::nn::Module {
  Wrapped() : module(register_module("module", std::make_shared<Net>())) {}
  std::shared_ptr<Net> module;
};

std::vector<at::Tensor> state_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> state = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) state.push_back(buffer);
  return state;
}

bool same(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto left = state_of(a), right = state_of(b);
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!at::equal(left[i], right[i])) return false;
  }
  return left.size() == right.size();
}

void train(Net& net, torch::optim::Optimizer& optimizer, int steps) {
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    net.forward(at::randn({8, 4})).square().mean().backward();
    optimizer.step();
  }
}

Checkpoint through_file(const Checkpoint& checkpoint) {
  const TemporaryDirectory directory;
  save_checkpoint(directory / "a.safetensors", checkpoint);
  return load_checkpoint(directory / "a.safetensors");
}

// Trains 3 steps, saves, trains 4 more; a second run loads and trains the same 4. Both must end with the same bits.
template <class MakeOptimizer>
void check_resume(MakeOptimizer make_optimizer) {
  Net net;
  auto optimizer = make_optimizer(net);
  train(net, *optimizer, 3);
  optimizer->param_groups()[0].options().set_lr(0.05);
  Checkpoint checkpoint;
  add_module(checkpoint, net);
  add_optimizer(checkpoint, *optimizer);
  add_random_state(checkpoint);
  const Checkpoint loaded = through_file(checkpoint);
  train(net, *optimizer, 4);

  Net resumed;
  auto other = make_optimizer(resumed);
  CHECK_FALSE(same(net, resumed));
  load_module(loaded, resumed);
  load_optimizer(loaded, *other);
  load_random_state(loaded);
  CHECK(other->param_groups()[0].options().get_lr() == 0.05);
  train(resumed, *other, 4);
  CHECK(same(net, resumed));
}

}  // namespace

TEST_CASE("training resumes with the same bits: SGD with momentum") {
  check_resume([](Net& net) {
    return std::make_unique<torch::optim::SGD>(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  });
}

TEST_CASE("training resumes with the same bits: SGD without state") {
  check_resume(
      [](Net& net) { return std::make_unique<torch::optim::SGD>(net.parameters(), torch::optim::SGDOptions(0.1)); });
}

TEST_CASE("training resumes with the same bits: Adam, AMSGrad, AdamW") {
  check_resume([](Net& net) { return std::make_unique<torch::optim::Adam>(net.parameters()); });
  check_resume([](Net& net) {
    return std::make_unique<torch::optim::Adam>(net.parameters(), torch::optim::AdamOptions(0.1).amsgrad(true));
  });
  check_resume([](Net& net) { return std::make_unique<torch::optim::AdamW>(net.parameters()); });
}

TEST_CASE("a module that does not fit is left unchanged, and everything that is wrong is listed") {
  Net net(5), other(6);
  Checkpoint checkpoint;
  add_module(checkpoint, net);
  checkpoint.tensors.erase("model.norm.running_mean");
  checkpoint.tensors["model.extra"] = at::full({2}, 1);
  const at::Tensor before = other.last->weight.detach().clone();
  CHECK_ERROR(error_of([&] { load_module(checkpoint, other); }), ErrorKind::invalid_argument, "unchanged",
              "missing from the checkpoint: norm.running_mean (Float [6])", "unexpected in the checkpoint: extra",
              "different: first.weight is Float [5, 4] in the checkpoint, Float [6, 4] in the module",
              "different: last.weight");
  CHECK(at::equal(before, other.last->weight));
  CHECK_ERROR(error_of([&] { load_module({}, other); }), ErrorKind::invalid_argument, "missing", "last.weight");
}

TEST_CASE("another type is a difference too") {
  Net net;
  Checkpoint checkpoint;
  add_module(checkpoint, net);
  checkpoint.tensors["model.last.weight"] = checkpoint.tensors["model.last.weight"].to(at::kDouble);
  CHECK_ERROR(error_of([&] { load_module(checkpoint, net); }), ErrorKind::invalid_argument,
              "last.weight is Double [2, 5] in the checkpoint, Float [2, 5] in the module");
}

// feature: E-14, H-09
TEST_CASE("a wrapped model's checkpoint fits the plain model, and the other way round") {
  Net plain;
  Wrapped wrapped;
  Checkpoint from_wrapped, from_plain;
  add_module(from_wrapped, wrapped);
  CHECK(from_wrapped.tensors.contains("model.module.first.weight"));
  load_module(from_wrapped, plain);
  CHECK(same(plain, wrapped));
  Net other;
  add_module(from_plain, other);
  load_module(from_plain, wrapped);
  CHECK(same(other, wrapped));
}

TEST_CASE("a module may have a child called module") {
  struct Outer : torch::nn::Module {
    torch::nn::Linear inner = register_module("module", torch::nn::Linear(2, 3));
  };
  Outer saved, loaded, again;
  Checkpoint checkpoint, wrapped;
  add_module(checkpoint, saved);
  load_module(checkpoint, loaded);
  CHECK(at::equal(loaded.inner->weight, saved.inner->weight));
  for (const auto& [name, tensor] : checkpoint.tensors) {
    wrapped.tensors["model.module." + name.substr(std::string("model.").size())] = tensor;
  }
  CHECK(wrapped.tensors.contains("model.module.module.weight"));
  load_module(wrapped, again);
  CHECK(at::equal(again.inner->weight, saved.inner->weight));
  Outer by_names;
  load_state_dict(by_names, state_dict_of(saved, StateDictKeys::bare));
  CHECK(at::equal(by_names.inner->weight, saved.inner->weight));
  load_state_dict(again, state_dict_of(by_names, StateDictKeys::module_prefix));
}

TEST_CASE("optimizer state that does not fit is refused, and the optimizer is unchanged") {
  Net net;
  torch::optim::Adam adam(net.parameters());
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  train(net, adam, 1);
  Checkpoint checkpoint;
  add_optimizer(checkpoint, adam);
  CHECK_ERROR(error_of([&] { load_optimizer(checkpoint, sgd); }), ErrorKind::invalid_argument, "the Adam optimizer",
              "this optimizer is SGD");
  CHECK_ERROR(error_of([&] { load_optimizer({}, adam); }), ErrorKind::invalid_argument, "no optimizer");

  checkpoint.tensors.erase("optimizer.0.exp_avg");
  checkpoint.tensors["optimizer.1.exp_avg_sq"] = at::full({3}, 1.0F);
  checkpoint.tensors["optimizer.99.step"] = at::full({}, 1, at::kLong);
  CHECK_ERROR(error_of([&] { load_optimizer(checkpoint, adam); }), ErrorKind::invalid_argument,
              "missing from the checkpoint: optimizer.0.exp_avg", "different: optimizer.1.exp_avg_sq is Float [3]",
              "unexpected in the checkpoint: optimizer.99.step");
  CHECK(adam.state().size() == net.parameters().size());

  Net smaller(3);
  torch::optim::Adam other(smaller.parameters());
  Checkpoint fits_not;
  add_optimizer(fits_not, adam);
  CHECK_ERROR(error_of([&] { load_optimizer(fits_not, other); }), ErrorKind::invalid_argument, "different");
  CHECK(other.state().empty());
}

TEST_CASE("an optimizer with other groups of parameters is refused, and unchanged; older files do not tell") {
  Net net;
  const auto in_groups = [&](const std::vector<std::ptrdiff_t>& sizes) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    const std::vector<at::Tensor> all = net.parameters();
    auto next = all.begin();
    for (const std::ptrdiff_t size : sizes) {
      groups.emplace_back(std::vector(next, next + size));
      next += size;
    }
    REQUIRE(next == all.end());
    return groups;
  };
  torch::optim::Adam adam(in_groups({2, 3})), same(in_groups({2, 3})), other(in_groups({3, 2})), one(in_groups({5}));
  torch::optim::SGD sgd(in_groups({3, 2}), torch::optim::SGDOptions(0.1));
  train(net, adam, 1);
  Checkpoint checkpoint;
  add_optimizer(checkpoint, adam);
  Checkpoint loaded = through_file(checkpoint);
  load_optimizer(loaded, same);
  CHECK_ERROR(error_of([&] { load_optimizer(loaded, other); }), ErrorKind::invalid_argument, "which is unchanged",
              "parameter groups are [2, 3] in the checkpoint, [3, 2] in the optimizer", "in the same order");
  CHECK_ERROR(error_of([&] { load_optimizer(loaded, one); }), ErrorKind::invalid_argument,
              "parameter groups are [2, 3] in the checkpoint, [5] in the optimizer");
  CHECK_ERROR(error_of([&] { load_optimizer(loaded, sgd); }), ErrorKind::invalid_argument, "this optimizer is SGD");
  CHECK(other.state().empty());
  CHECK(one.state().empty());
  REQUIRE(loaded.metadata.erase("optimizer.groups") == 1);
  load_optimizer(loaded, other);
  CHECK(other.state().size() == 5);
}

TEST_CASE("an optimizer of some of the parameters does not tell of all groups") {
  Net net;
  const std::vector<at::Tensor> all = net.parameters();
  torch::optim::Adam whole(all), part({all[1], all[3]});
  train(net, whole, 1);
  Checkpoint of_whole, of_part, its_own;
  add_optimizer(of_whole, whole);
  for (const auto& [name, tensor] : of_whole.tensors) {
    const bool is_wanted = name.starts_with("optimizer.1.") || name.starts_with("optimizer.3.");
    if (is_wanted || name.starts_with("optimizer.group.")) of_part.tensors.emplace(name, tensor);
  }
  of_part.metadata = of_whole.metadata;
  load_optimizer(of_part, part, "optimizer.", {1, 3});
  CHECK(part.state().size() == 2);
  add_optimizer(its_own, part, "optimizer.", {1, 3});
  CHECK(!its_own.metadata.contains("optimizer.groups"));
}

TEST_CASE("an invalid random state is refused") {
  CHECK_ERROR(error_of([] { load_random_state({}); }), ErrorKind::invalid_argument, "no random state 'random.cpu'");
  Checkpoint checkpoint;
  checkpoint.tensors["random.cpu"] = at::full({10}, 0, at::kByte);
  CHECK_ERROR(error_of([&] { load_random_state(checkpoint); }), ErrorKind::invalid_argument,
              "not the state of a CPU random number generator");
}

namespace {

// With tied weights, or with weights of the same shapes that are not.
struct Tied : torch::nn::Module {
  explicit Tied(bool is_tied) {
    weight = register_parameter("decoder", at::full({2, 3}, 1.0));
    other = register_parameter("encoder", is_tied ? weight : at::full({2, 3}, 2.0));
    rows = register_buffer("rows", is_tied ? weight.detach().narrow(0, 1, 1) : at::full({1, 3}, 3.0));
  }
  at::Tensor weight, other, rows;
};

}  // namespace

TEST_CASE("values that differ are not loaded into tensors that share memory, and equal ones are") {
  Tied tied(true), plain(false);
  Checkpoint of_plain;
  add_module(of_plain, plain);
  CHECK_ERROR(error_of([&] { load_module(of_plain, tied); }), ErrorKind::invalid_argument,
              "decoder and encoder share memory in the module, and have different values in the checkpoint",
              "decoder and rows share memory");
  CHECK(at::equal(tied.weight, at::full({2, 3}, 1.0)));
  const NamedTensors state = state_dict_of(plain, StateDictKeys::bare);
  CHECK_ERROR(error_of([&] { load_state_dict(tied, state); }), ErrorKind::invalid_argument,
              "decoder and encoder share memory in the module, and have different values in the state");
  {
    const at::NoGradGuard no_grad;
    plain.weight.fill_(NAN);  // which is equal to itself here
    plain.other.fill_(NAN);
    plain.rows.fill_(NAN);
  }
  load_module(of_plain, tied);
  CHECK(tied.weight.isnan().all().item<bool>());
  // And the other way round.
  tied.weight.detach().fill_(5);
  Checkpoint of_tied;
  add_module(of_tied, tied);
  load_module(of_tied, plain);
  for (const at::Tensor& each : state_of(plain)) CHECK(at::equal(each, at::full_like(each, 5)));
}

TEST_CASE("tensors that only lie in one block of memory are loaded, whatever their values are") {
  struct Columns : torch::nn::Module {
    Columns() {
      const at::Tensor block = at::zeros({3, 2});
      register_buffer("left", block.select(1, 0));
      register_buffer("right", block.select(1, 1));
    }
  };
  Columns from, to;
  from.buffers()[0].fill_(1);
  from.buffers()[1].fill_(2);
  Checkpoint checkpoint;
  add_module(checkpoint, from);
  load_module(checkpoint, to);
  CHECK(same(from, to));
}

}  // namespace module_state_test
