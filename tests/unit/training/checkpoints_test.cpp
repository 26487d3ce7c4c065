// Ranks that save and load beside a training.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>

#include "examples/models/resnet18.h"
#include "examples/models/toy.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/module_state.h"
#include "lockstep/train/checkpoint/state_digest.h"
#include "lockstep/train/checkpoint/torch_files.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_device.h"
#include "tests/support/local_groups.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_device.h"
#include "tests/unit/ddp/models.h"

namespace checkpoints_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

Checkpoint checkpoint_of(const models::Toy& model) {
  Checkpoint checkpoint;
  add_module(checkpoint, *model);
  return checkpoint;
}

struct Training {
  explicit Training(const ProcessGroup& group) : ddp(model, group), optimizer(ddp.parameters(), 0.1) {}
  void step(int seed) {
    optimizer.zero_grad();
    ddp(wave({5, 10}, seed)).square().mean().backward();
    optimizer.step();
  }
  models::Toy model;
  DistributedDataParallel<models::Toy> ddp;
  torch::optim::SGD optimizer;
};

}  // namespace

// feature: C-12, H-01, H-04
TEST_CASE("rank 0 saves, all wait and load: one file, with the bits that every rank has") {
  for (const int ranks : {1, 2, 4}) {
    const TemporaryDirectory folder;
    const std::string path = folder / "model.checkpoint";
    run_group_or_throw(ranks, Over::arena, [&](const ProcessGroup& group) {
      Training training(group);
      for (int step = 0; step < 3; ++step) training.step(10 * step + group.rank());
      if (group.rank() == 0) save_torch_file(path, checkpoint_of(training.model).tensors);
      group.barrier();
      CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
      models::Toy loaded;
      load_module(load_torch_file(path, {{"cuda:0", "cpu"}}), *loaded);
      CHECK(sha256_of(checkpoint_of(loaded)) == sha256_of(checkpoint_of(training.model)));
    });
  }
}

// feature: H-05
TEST_CASE("after its next backward rank 0 may remove the file, since all ranks have read it") {
  const TemporaryDirectory folder;
  const std::string path = folder / "model.safetensors";
  run_group_or_throw(3, Over::arena, [&](const ProcessGroup& group) {
    Training training(group);
    for (int round = 0; round < 100; ++round) {
      if (group.rank() == 0) save_checkpoint(path, checkpoint_of(training.model));
      group.barrier();
      load_module(load_checkpoint(path), *training.model);
      training.step(10 * round + group.rank());
      if (group.rank() == 0) std::filesystem::remove(path);
    }
  });
  CHECK_FALSE(std::filesystem::exists(path));
}

// feature: E-15
TEST_CASE("a checkpoint of a wrapped model is loaded into a plain one, and the log says so") {
  ::setenv("LOCKSTEP_LOG", "info", 1);
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    Training training(group);
    Checkpoint wrapped;
    for (const auto& [name, tensor] : training.ddp.state_dict(StateDictKeys::module_prefix)) {
      wrapped.tensors["model." + name] = tensor;
    }
    models::Toy plain;
    const CapturedLog log;
    load_module(wrapped, *plain);
    log.await("the prefix 'module.' of all names in the checkpoint is ignored");
    CHECK(sha256_of(checkpoint_of(plain)) == sha256_of(checkpoint_of(training.model)));
  });
  ::unsetenv("LOCKSTEP_LOG");
}

// feature: H-07
TEST_CASE("a checkpoint is loaded by way of the host to the device on which the rank has its model") {
  register_fake_device();
  const TemporaryDirectory folder;
  const std::string path = folder / "model.safetensors";
  const models::Toy saved;
  save_checkpoint(path, checkpoint_of(saved));
  for (const c10::DeviceIndex index : {0, 3}) {
    const at::Device device(at::kPrivateUse1, index);
    models::Toy model;
    for (const auto& parameter : model->parameters()) move_to(parameter, device);
    const Checkpoint loaded = load_checkpoint(path);
    for (const auto& [name, tensor] : loaded.tensors) CHECK(tensor.is_cpu());
    load_module(loaded, *model);
    for (std::size_t i = 0; i < saved->parameters().size(); ++i) {
      CHECK(model->parameters()[i].device() == device);
      CHECK(at::equal(model->parameters()[i].to(at::kCPU), saved->parameters()[i]));
    }
  }
}

// feature: G-10
TEST_CASE("ResNet18 has torchvision's number of parameters") {
  const models::ResNet18 model(10);
  std::int64_t count = 0;
  for (const at::Tensor& parameter : model->parameters()) count += parameter.numel();
  CHECK(count == 11'181'642);
}

}  // namespace checkpoints_test
