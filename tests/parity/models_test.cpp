// One training step of each example model, against the same step in Python (model_reference.py).
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "examples/models/cnn.h"
#include "examples/models/gpt.h"
#include "examples/models/mlp.h"
#include "examples/models/resnet18.h"
#include "examples/models/toy.h"
#include "lockstep/train/checkpoint/module_state.h"
#include "lockstep/train/checkpoint/torch_files.h"
#include "tests/parity/support.h"

// Behind torch's headers, whose own CHECK would replace doctest's.
#include <doctest/doctest.h>

namespace models_test {

namespace {

using Loss = at::Tensor (*)(const at::Tensor&, const at::Tensor&);

std::string joined_names(const torch::nn::Module& model) {
  std::string names;
  for (const auto& item : model.named_parameters()) names += (names.empty() ? "" : ",") + item.key();
  return names;
}

void check_state(const torch::nn::Module& model, const lockstep::Checkpoint& file, const std::string& prefix,
                 double tolerance) {
  for (const auto& list : {model.named_parameters(), model.named_buffers()}) {
    for (const auto& item : list) {
      CAPTURE(prefix + item.key());
      CHECK(parity::difference(item.value(), parity::tensor_of(file, prefix + item.key())) <= tolerance);
    }
  }
}

// `make` creates the model as model_reference.py does; then both have drawn the same random numbers.
template <typename Make>
void check_step(const std::string& name, Make make, Loss loss_of) {
  at::set_num_threads(1);
  const auto file = lockstep::load_checkpoint(std::string(PARITY_REFERENCE) + "/" + name + ".safetensors",
                                              lockstep::Integrity::if_present);
  at::manual_seed(1);
  auto model = make();
  CHECK(joined_names(*model) == file.metadata.at("parameters"));
  check_state(*model, file, "initial/", 0);
  lockstep::load_module(file, *model, "initial/");  // names: neither too few nor too many

  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  at::manual_seed(2);
  const at::Tensor loss = loss_of(model(parity::tensor_of(file, "x")), parity::tensor_of(file, "y"));
  loss.backward();
  CHECK(parity::difference(loss, parity::tensor_of(file, "loss")) <= parity::kTolerance);
  for (const auto& item : model->named_parameters()) {
    CAPTURE(item.key());
    const auto& expected = parity::tensor_of(file, "grad/" + item.key());
    CHECK(parity::difference(item.value().grad(), expected) <= parity::kTolerance);
  }
  optimizer.step();
  check_state(*model, file, "after/", parity::kTolerance);
}

// The model after the step from each kind of file that PyTorch writes, and to a file that it reads.
template <typename Make>
void check_files(const std::string& name, Make make) {
  const std::string base = std::string(PARITY_REFERENCE) + "/" + name;
  const auto file = lockstep::load_checkpoint(base + ".safetensors", lockstep::Integrity::if_present);
  const auto check = [&](const lockstep::Checkpoint& read) {
    auto model = make();
    lockstep::load_module(read, *model, "");
    check_state(*model, file, "after/", 0);
    lockstep::Checkpoint state;
    lockstep::add_module(state, *model, "");
    std::filesystem::create_directories(PARITY_WRITTEN);
    lockstep::save_torch_file(std::string(PARITY_WRITTEN) + "/" + name + ".pt", state.tensors);
  };
  check(lockstep::load_torch_file(base + ".pt"));
  check(lockstep::load_torch_file(base + "_legacy.pt"));
  check(lockstep::load_distributed_checkpoint(base + "_dcp"));
}

}  // namespace

// feature: E-13
TEST_CASE("models are read from PyTorch's files, and written for it") {
  check_files("toy", [] { return models::Toy(); });
  check_files("mlp", [] { return models::Mlp(); });
  check_files("cnn", [] { return models::Cnn(); });
  check_files("resnet18", [] { return models::ResNet18(10); });
  check_files("gpt", [] { return models::Gpt(); });
  check_files("gpt_dropout", [] { return models::Gpt(models::GptOptions{.dropout = 0.1}); });
}

// feature: G-01
TEST_CASE("a training step equals Python's: toy") {
  check_step(
      "toy", [] { return models::Toy(); }, parity::mean_squared_error);
}

TEST_CASE("a training step equals Python's: mlp") {
  check_step(
      "mlp", [] { return models::Mlp(); }, parity::cross_entropy);
}

TEST_CASE("a training step equals Python's: cnn") {
  check_step(
      "cnn", [] { return models::Cnn(); }, parity::cross_entropy);
}

TEST_CASE("a training step equals Python's: resnet18") {
  check_step(
      "resnet18", [] { return models::ResNet18(10); }, parity::cross_entropy);
}

TEST_CASE("a training step equals Python's: gpt") {
  check_step(
      "gpt", [] { return models::Gpt(); }, parity::cross_entropy);
}

TEST_CASE("a training step equals Python's: gpt with dropout") {
  check_step(
      "gpt_dropout", [] { return models::Gpt(models::GptOptions{.dropout = 0.1}); }, parity::cross_entropy);
}

TEST_CASE("the parity programs see a difference") {
  const at::Tensor zeros = at::zeros({2}), near = at::full({2}, 2e-5), nan = at::full({2}, NAN);
  CHECK(parity::difference(zeros, zeros) == 0);
  CHECK(parity::difference(near, zeros) > parity::kTolerance);
  CHECK(parity::difference(nan, zeros) > parity::kTolerance);
  CHECK(parity::difference(at::zeros({3}), zeros) > parity::kTolerance);
  CHECK(parity::difference(zeros.to(at::kDouble), zeros) > parity::kTolerance);
}

}  // namespace models_test
