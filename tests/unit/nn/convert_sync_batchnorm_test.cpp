#include "lockstep/train/nn/convert_sync_batchnorm.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <vector>

#include "examples/models/resnet18.h"
#include "lockstep/base/error.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/nn/sync_batch_norm.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"

namespace convert_sync_batchnorm_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using torch::nn::BatchNorm1d;
using torch::nn::BatchNormOptions;

namespace {

at::Tensor wave(at::IntArrayRef sizes, double shift) {
  return at::sin(at::arange(c10::multiply_integers(sizes), at::kFloat) * 0.37 + shift).reshape(sizes);
}

// Batch norm in every place where a model may keep it: a member, a sequence, a list, and two levels down.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const BatchNormOptions& options)
      : norm(register_module("norm", BatchNorm1d(options))),
        layers(register_module("layers", torch::nn::Sequential(torch::nn::Linear(6, 6), BatchNorm1d(options)))) {}
  at::Tensor forward(const at::Tensor& x) { return layers->forward(at::tanh(norm(x))); }

  BatchNorm1d norm;
  torch::nn::Sequential layers;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const BatchNormOptions& options = BatchNormOptions(6))
      : first(register_module("first", torch::nn::Linear(3, 6))),
        block(register_module("block", Block(options))),
        list(register_module("list", torch::nn::ModuleList(BatchNorm1d(options), torch::nn::Linear(6, 2)))) {}
  at::Tensor forward(const at::Tensor& x) {
    return list[1]->as<torch::nn::Linear>()->forward(list[0]->as<BatchNorm1d>()->forward(block(first(x))));
  }

  torch::nn::Linear first;
  Block block;
  torch::nn::ModuleList list;
};
TORCH_MODULE(Net);

std::vector<at::Tensor> state_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> state = module.parameters();
  for (const auto& buffer : module.buffers()) state.push_back(buffer);
  return state;
}

void copy_state(const torch::nn::Module& from, const torch::nn::Module& to) {
  const at::NoGradGuard no_grad;
  const auto source = state_of(from), target = state_of(to);
  for (std::size_t i = 0; i < source.size(); ++i) at::Tensor(target[i]).copy_(source[i]);
}

// With the same weights each time.
Net make_net(const BatchNormOptions& options = BatchNormOptions(6)) {
  Net net(options);
  const at::NoGradGuard no_grad;
  double shift = 0;
  for (auto& parameter : net->parameters()) parameter.copy_(wave(parameter.sizes(), shift += 1) * 0.5);
  return net;
}

std::vector<std::string> names_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  for (const auto& item : module.named_buffers()) names.push_back(item.key());
  for (const auto& item : module.named_modules("", false)) names.push_back(item.key());
  return names;
}

void check_close(const at::Tensor& found, const at::Tensor& expected, double tolerance) {
  CHECK((found - expected).abs().max().item<double>() <= tolerance);
}

}  // namespace

// feature: I-01
TEST_CASE("all 20 layers of a ResNet18 are converted, and it computes what one process would") {
  models::ResNet18 reference(4);
  std::vector<models::ResNet18> models{models::ResNet18(4), models::ResNet18(4)};
  for (const auto& model : models) copy_state(*reference, *model);
  const auto images = [](int rank) { return wave({2, 3, 32, 32}, rank); };
  const at::Tensor expected = reference->forward(at::cat({images(0), images(1)}));
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    auto& mine = models[static_cast<std::size_t>(group.rank())];
    CHECK(convert_sync_batchnorm(mine, group) == 20);
    check_close(mine->forward(images(group.rank())), expected.narrow(0, 2 * group.rank(), 2), 1e-4);
  });
  for (std::size_t i = 0; i < state_of(*reference).size(); ++i) {
    check_close(state_of(*models[0])[i], state_of(*reference)[i], 1e-4);
    CHECK(at::equal(state_of(*models[0])[i], state_of(*models[1])[i]));
  }
}

// feature: I-01
TEST_CASE("layers are converted wherever a model keeps them, and nothing about it changes") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Net net = make_net(BatchNormOptions(6).eps(1e-3).momentum(0.3));
    net->block->norm->eval();
    const auto names = names_of(*net);
    const auto state = state_of(*net);
    CHECK(convert_sync_batchnorm(net, group) == 3);
    CHECK(names_of(*net) == names);
    const auto after = state_of(*net);
    for (std::size_t i = 0; i < state.size(); ++i) CHECK(after[i].is_same(state[i]));
    CHECK_FALSE(net->block->norm->is_training());
    CHECK(net->block->norm->options.momentum() == 0.3);
    CHECK(is_sync_batchnorm(*net->block->norm));
    CHECK(is_sync_batchnorm(*net->block->layers[1]));
    CHECK(is_sync_batchnorm(*net->list[0]));
    CHECK_FALSE(is_sync_batchnorm(*net->first));
    CHECK_FALSE(is_sync_batchnorm(*net));
    CHECK(is_sync_batchnorm(*SyncBatchNorm(6, group)));
    CHECK(convert_sync_batchnorm(torch::nn::Linear(2, 2), group) == 0);
  });
}

TEST_CASE("a converted model trains in DDP as one process does with all batches") {
  for (const Over transport : {Over::arena, Over::links}) {
    for (const auto& options : {BatchNormOptions(6), BatchNormOptions(6).momentum(std::nullopt),
                                BatchNormOptions(6).affine(false), BatchNormOptions(6).track_running_stats(false),
                                BatchNormOptions(6).affine(false).track_running_stats(false)}) {
      run_group_or_throw(3, transport, [&](const ProcessGroup& group) {
        Net net = make_net(options), reference = make_net(options);
        CHECK(convert_sync_batchnorm(net, group) == 3);
        // Every gradient by itself, so that reductions are under way while the statistics are exchanged.
        DistributedDataParallel ddp(net, group, {.bucketing = Bucketing::off});
        torch::optim::SGD optimizer(ddp.parameters(), 0.1), plain(reference->parameters(), 0.1);
        for (int step = 0; step < 4; ++step) {
          const auto batch = [&](int rank) { return wave({4, 3}, 10 * step + rank); };
          optimizer.zero_grad();
          plain.zero_grad();
          ddp(batch(group.rank())).square().mean().backward();
          reference(at::cat({batch(0), batch(1), batch(2)})).square().mean().backward();
          optimizer.step();
          plain.step();
        }
        for (std::size_t i = 0; i < state_of(*net).size(); ++i) {
          check_close(state_of(*net)[i], state_of(*reference)[i], 1e-5);
        }
      });
    }
  }
}

TEST_CASE("gradients in front of a converted layer are weighted by samples as those behind it") {
  for (const bool accumulates : {false, true}) {
    run_group_or_throw(3, Over::arena, [&](const ProcessGroup& group) {
      Net net = make_net(), reference = make_net();
      convert_sync_batchnorm(net, group);
      DistributedDataParallel ddp(net, group, {.weighting = Weighting::samples});
      const auto batch = [](int rank, int part) { return wave({2 + 3 * rank + part, 3}, 10 * part + rank); };
      const auto backward = [&](int part) {
        ddp(batch(group.rank(), part)).square().mean().backward();
        const at::Tensor all = at::cat({batch(0, part), batch(1, part), batch(2, part)});
        reference(all).square().mean(1).sum().backward();
      };
      if (accumulates) {
        const auto guard = ddp.no_sync();
        backward(0);
      }
      backward(1);
      const double samples = accumulates ? 15 + 18 : 18;
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        check_close(net->parameters()[i].grad(), reference->parameters()[i].grad() / samples, 1e-5);
      }
    });
  }
}

TEST_CASE("converted layers in evaluation are plain, and do not touch the group") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    for (const bool tracked : {true, false}) {
      const auto options = BatchNormOptions(6).track_running_stats(tracked);
      Net net = make_net(options), reference = make_net(options);
      convert_sync_batchnorm(net, group);
      net->eval();
      reference->eval();
      for (int batch = 0; batch <= group.rank(); ++batch) {
        const at::Tensor input = wave({4, 3}, batch);
        CHECK(at::equal(net(input), reference(input)));
      }
    }
  });
}

TEST_CASE("in a group of one a converted model is what it was") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    for (const bool tracked : {true, false}) {
      const auto options = BatchNormOptions(6).track_running_stats(tracked);
      Net net = make_net(options), reference = make_net(options);
      CHECK(convert_sync_batchnorm(net, group) == 3);
      CHECK(at::equal(net(wave({4, 3}, 0)), reference(wave({4, 3}, 0))));
    }
  });
}

TEST_CASE("inference mode synchronises training as well") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const c10::InferenceMode inference;
    BatchNorm1d norm(2), reference(2);
    convert_sync_batchnorm(norm, group);
    const auto batch = [](int rank) { return wave({3, 2}, rank); };
    const at::Tensor expected = reference(at::cat({batch(0), batch(1)}));
    check_close(norm(batch(group.rank())), expected.narrow(0, 3 * group.rank(), 3), 1e-6);
  });
}

TEST_CASE("a rank without samples takes part; one with a single value a channel is refused by torch's module") {
  run_group_or_throw(3, Over::arena, [](const ProcessGroup& group) {
    BatchNorm1d norm(2), reference(2);
    convert_sync_batchnorm(norm, group);
    const auto batch = [](int rank) { return wave({rank == 1 ? 0 : 3, 2}, rank); };
    const at::Tensor expected = reference(at::cat({batch(0), batch(2)}));
    const at::Tensor output = norm(batch(group.rank()));
    if (group.rank() != 1) check_close(output, expected.narrow(0, group.rank() == 0 ? 0 : 3, 3), 1e-6);
    output.sum().backward();
    check_close(norm->running_var, reference->running_var, 1e-6);
    CHECK_THROWS_WITH_AS((void)norm(wave({1, 2}, 0)), doctest::Contains("Expected more than 1 value per channel"),
                         c10::Error);
  });
}

TEST_CASE("a layer may be converted again, to another group; other layers and clones stay plain") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const ProcessGroup alone = local_groups(1)[0];
    BatchNorm1d norm(2), plain(2);
    CHECK(convert_sync_batchnorm(norm, group) == 1);
    CHECK(convert_sync_batchnorm(norm, alone) == 1);
    const auto copy = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(norm->clone());
    CHECK(is_sync_batchnorm(*norm));
    CHECK_FALSE(is_sync_batchnorm(*copy));
    group.abort("nobody may use it");
    const at::Tensor input = wave({3, 2}, group.rank());
    const at::Tensor expected = plain(input);
    CHECK(at::equal(norm(input), expected));
    CHECK(at::equal(copy->forward(input), expected));
  });
}

TEST_CASE("the group ends with the model, not with the program") {
  auto groups = local_groups(2, Over::links);
  BatchNorm1d norm(2);
  convert_sync_batchnorm(norm, groups[0]);
  groups.erase(groups.begin());
  const auto errors = [&] { return error_of([&] { groups[0].barrier({.timeout = std::chrono::milliseconds(50)}); }); };
  norm = nullptr;
  CHECK(errors().kind() == ErrorKind::peer_lost);
}

// feature: I-05
TEST_CASE("after DDP it is too late, and the error says the right order; before, both orders of moving work") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Net net = make_net();
    net->to(at::kDouble);
    {
      DistributedDataParallel ddp(net, group);
      CHECK_ERROR(error_of([&] { convert_sync_batchnorm(net, group); }), ErrorKind::invalid_argument,
                  "parameter first.weight is wrapped in a DistributedDataParallel already",
                  "convert_sync_batchnorm(model, group), move the model to its device, then "
                  "DistributedDataParallel(model, group)");
      CHECK_FALSE(is_sync_batchnorm(*net->block->norm));
    }
    CHECK(convert_sync_batchnorm(net, group) == 3);
    net->to(at::kFloat);
    CHECK(is_sync_batchnorm(*net->block->norm));
    DistributedDataParallel ddp(net, group);
    ddp(wave({4, 3}, group.rank())).sum().backward();
  });
}

}  // namespace convert_sync_batchnorm_test
