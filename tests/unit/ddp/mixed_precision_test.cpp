// What computes in the low type with mixed precision: arguments in containers, and not layers with running statistics.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/utils/rnn.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/support/expect_error.h"
#include "tests/unit/ddp/models.h"

namespace mixed_precision_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

const DdpOptions kMixed{.mixed_precision = {.param_dtype = at::kBFloat16}};

at::Tensor low(const at::Tensor& tensor) { return tensor.to(at::kBFloat16); }

bool are_close(const at::Tensor& found, const at::Tensor& expected) {
  const double error = (found - expected).detach().abs().max().item<double>();
  return error <= 0.02 * expected.detach().abs().max().item<double>();
}

// As PyTorch's FSDP: linear layers in bfloat16, batch norm in float32.
at::Tensor as_pytorch(Net& net, const at::Tensor& x) {
  const auto linear = [](const torch::nn::Linear& layer, const at::Tensor& input) {
    return at::linear(input, low(layer->weight), low(layer->bias));
  };
  const at::Tensor first = linear(net->first, low(x)).to(at::kFloat);
  const at::Tensor norm = low(net->norm->forward(first));
  return linear(net->last, linear(net->middle, at::relu(norm)));
}

}  // namespace

TEST_CASE("mixed precision: batch norm and its statistics stay in float32, with the values of PyTorch" * on_host()) {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Net model(64), alone(64);
    set_weights(model, 1);
    set_weights(alone, 1);
    DistributedDataParallel ddp(model, group, kMixed);
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      alone->zero_grad();
      const at::Tensor x = wave({16, 20}, step);  // the same on both ranks, so their mean is one rank's
      const at::Tensor found = ddp(x), expected = as_pytorch(alone, x);
      CHECK((found.scalar_type() == at::kBFloat16));
      CHECK(are_close(found, expected));
      found.square().mean().backward();
      expected.square().mean().backward();
    }
    CHECK((model->norm->running_mean.scalar_type() == at::kFloat));
    CHECK(are_close(model->norm->running_mean, alone->norm->running_mean));
    CHECK(are_close(model->norm->running_var, alone->norm->running_var));
    CHECK(are_close(model->norm->weight.grad(), alone->norm->weight.grad()));
    CHECK(are_close(model->last->weight.grad(), alone->last->weight.grad()));
    model->eval();
    alone->eval();
    const at::NoGradGuard no_grad;
    CHECK(are_close(ddp(wave({4, 20}, 9)), as_pytorch(alone, wave({4, 20}, 9))));
  });
}

TEST_CASE("mixed precision: layers with running statistics of their own, others and none" * on_host()) {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    using torch::nn::InstanceNorm1d, torch::nn::InstanceNorm1dOptions, torch::nn::BatchNorm1d,
        torch::nn::BatchNormOptions;
    const auto trains = [&](const auto& norm, const DdpOptions& options) {
      torch::nn::Sequential model(norm);
      DistributedDataParallel ddp(model, group, options);
      ddp(wave({4, 3, 8}, group.rank())).square().mean().backward();
      for (const at::Tensor& parameter : model->parameters()) CHECK((parameter.grad().scalar_type() == at::kFloat));
    };
    trains(InstanceNorm1d(InstanceNorm1dOptions(3).affine(true).track_running_stats(true)), kMixed);
    trains(BatchNorm1d(BatchNormOptions(3).track_running_stats(false)), kMixed);
    trains(BatchNorm1d(3), {.mixed_precision = {.param_dtype = at::kHalf}});
    trains(BatchNorm1d(3), {.mixed_precision = {.param_dtype = at::kBFloat16, .buffer_dtype = at::kBFloat16}});
  });
}

TEST_CASE("mixed precision: arguments are converted wherever they lie, and the caller's stay" * on_host()) {
  using Pair = std::tuple<at::Tensor, at::Tensor>;
  struct ManyImpl : torch::nn::Module {
    ManyImpl() { lstm = register_module("lstm", torch::nn::LSTM(4, 4)); }
    at::Tensor forward(const at::Tensor& x, const std::optional<Pair>& hx) { return std::get<0>(lstm->forward(x, hx)); }
    at::Tensor forward(const std::vector<Pair>& pairs, const std::map<std::string, std::vector<at::Tensor>>& named,
                       const std::pair<int, std::array<std::optional<at::Tensor>, 2>>& others) {
      CHECK((std::get<1>(pairs.at(0)).scalar_type() == at::kBFloat16));
      CHECK((named.at("a").at(1).scalar_type() == at::kLong));
      CHECK((others.second[1]->scalar_type() == at::kBFloat16));
      CHECK(others.first == 3);
      return forward(named.at("a").at(0), std::optional(pairs.at(0)));
    }
    at::Tensor forward(const torch::nn::utils::rnn::PackedSequence& packed) {
      return std::get<0>(lstm->forward_with_packed_input(packed)).data();
    }
    torch::nn::LSTM lstm = nullptr;
  };
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto model = std::make_shared<ManyImpl>();
    DistributedDataParallel ddp(model, group, kMixed);
    const at::Tensor x = wave({3, 2, 4}, group.rank());
    const Pair hx(wave({1, 2, 4}, 1), wave({1, 2, 4}, 2));
    const auto trains = [&](const auto&... arguments) {
      ddp.zero_grad();
      const at::Tensor y = ddp(arguments...);
      CHECK((y.scalar_type() == at::kBFloat16));
      y.sum().backward();
      CHECK(same_on_all_ranks(group, model->lstm->named_parameters()["weight_ih_l0"].grad()));
    };
    trains(x, std::optional(hx));
    trains(std::vector{hx}, std::map<std::string, std::vector<at::Tensor>>{{"a", {x, at::tensor({1}, at::kLong)}}},
           std::pair(3, std::array{std::optional<at::Tensor>(), std::optional(x)}));
    trains(torch::nn::utils::rnn::pack_padded_sequence(x, at::tensor({3, 2})));
    CHECK((std::get<0>(hx).scalar_type() == at::kFloat));
  });
}

TEST_CASE("an embedding that shortens its rows in forward is refused with what to do, unless ranks may differ" *
          on_host()) {
  struct TablesImpl : torch::nn::Module {
    TablesImpl() {
      table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 2).max_norm(1)));
    }
    at::Tensor forward(const at::Tensor& rows) { return table->forward(rows); }
    torch::nn::Embedding table = nullptr;
  };
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto wrap = [&](const DdpOptions& options) {
      const auto model = std::make_shared<TablesImpl>();
      DistributedDataParallel ddp(model, group, options);
    };
    CHECK_ERROR(error_of([&] { wrap({}); }), ErrorKind::invalid_argument, "the embedding of table.weight has max_norm",
                "Leave max_norm unset", "at::renorm");
    const torch::nn::EmbeddingBag bag(torch::nn::EmbeddingBagOptions(9, 2).max_norm(1));
    CHECK_ERROR(error_of([&] { DistributedDataParallel ddp(bag, group); }), ErrorKind::invalid_argument,
                "the embedding of weight has max_norm");
    wrap({.compare_parameters_every = 0});
  });
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    DistributedDataParallel ddp(std::make_shared<TablesImpl>(), group);
  });
}

}  // namespace mixed_precision_test
