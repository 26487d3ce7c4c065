// Random states of which one bit differs on one rank are never saved, and the error names the tensor; without that bit
// they are saved and loaded with the same bits. LOCKSTEP_TEST_CASES sets how many.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/checkpoint/async_saver.h"
#include "lockstep/train/checkpoint/module_state.h"
#include "lockstep/train/checkpoint/optimizer_state.h"
#include "lockstep/train/checkpoint/save.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/state_digest.h"
#include "tests/graphs/dice.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_directory.h"

namespace random_replicas_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

using Parameters = std::vector<at::Tensor>;

long cases() {
  const char* text = std::getenv("LOCKSTEP_TEST_CASES");
  if (text != nullptr) return std::atol(text);
  return kIsSanitized ? 20 : 100;
}

// One that all ranks make alike.
struct Model : torch::nn::Module {
  Model(std::uint64_t seed, bool is_large, int rank) {
    Dice dice(seed);
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    const int count = 1 + dice.below(5);
    for (int i = 0; i < count; ++i) {
      const auto type = std::vector{at::kFloat, at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}[dice.below(5)];
      std::vector<std::int64_t> shape(static_cast<std::size_t>(dice.below(4)));
      for (std::int64_t& size : shape) size = dice.percent(5) ? 0 : 1 + dice.below(7);
      at::Tensor tensor = at::rand(shape, generator).to(type);
      if (shape.size() == 2 && dice.percent(30)) tensor = tensor.t();
      register_parameter("p" + std::to_string(i), tensor);
    }
    // 9 MiB, and a share is 4: several ranks write.
    if (is_large) register_parameter("large", at::rand({1200, 2000}, generator));
    if (dice.percent(50)) register_buffer("buffer", at::full({3}, rank));  // which is rank 0's
  }
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(int kind, const Parameters& all) {
  using namespace torch::optim;
  switch (kind) {
    case 1: return std::make_unique<SGD>(all, SGDOptions(0.01).momentum(0.9));
    case 2: return std::make_unique<Adam>(all, AdamOptions(0.01));
    case 3: return std::make_unique<AdamW>(all, AdamWOptions(0.01).amsgrad(true));
    case 4: return std::make_unique<RMSprop>(all, RMSpropOptions(0.01).momentum(0.5));
    case 5: return std::make_unique<Adagrad>(all, AdagradOptions(0.01));
    default: return nullptr;
  }
}

// What is the same for all ranks of a case.
struct Case {
  explicit Case(std::uint64_t number) : seed(number), dice(number + 1) {}
  std::uint64_t seed;
  Dice dice;
  int ranks = 2 + dice.below(3);
  bool is_large = dice.percent(15);
  bool is_wrapped = dice.percent(50);
  int optimizer = dice.below(6);
  int way = dice.below(4);
  int flipped_rank = dice.below(ranks);
  std::uint64_t flipped_tensor = dice.next();
  std::uint64_t flipped_bit = dice.next();
};

// A rank of it.
struct Training {
  Training(const Case& of, const World& world, std::uint64_t seed)
      : model(std::make_shared<Model>(seed, of.is_large, world.rank())) {
    if (of.is_wrapped) ddp.emplace(model, world);
    optimizer = make_optimizer(of.optimizer, model->parameters());
    if (!optimizer) return;
    for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = at::ones_like(parameter);
    optimizer->step();
  }
  State state() {
    State state;
    if (ddp) state.model = *ddp;
    if (!ddp) state.model = *model;
    if (optimizer) state.optimizer = *optimizer;
    return state;
  }
  Checkpoint content() const {
    Checkpoint all;
    for (const auto& item : model->named_parameters())
      all.tensors.emplace("model." + item.key(), item.value().detach());
    if (optimizer) add_optimizer(all, *optimizer);
    return all;
  }

  std::shared_ptr<Model> model;
  std::optional<DistributedDataParallel<std::shared_ptr<Model>>> ddp;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

// Names of tensors that are the state's own memory, and not numbers that are stored as tensors; and the learning rate.
std::vector<std::string> names_in(const Training& training) {
  const Checkpoint one = training.content(), other = training.content();
  std::vector<std::string> names;
  for (const auto& [name, tensor] : one.tensors) {
    const bool is_own = tensor.numel() != 0 && tensor.const_data_ptr() == other.tensors.at(name).const_data_ptr();
    if (is_own || name.ends_with(".lr")) names.push_back(name);
  }
  return names;
}

void flip(Training& training, const std::string& name, std::uint64_t bit) {
  if (name.ends_with(".lr")) {
    auto& options = training.optimizer->param_groups()[0].options();
    return options.set_lr(options.get_lr() == 0.01 ? 0.01 + 1e-17 * 4 : 0.01);
  }
  const at::Tensor tensor = training.content().tensors.at(name);
  bit %= tensor.nbytes() * 8;
  static_cast<unsigned char*>(tensor.mutable_data_ptr())[bit / 8] ^= static_cast<unsigned char>(1 << (bit % 8));
}

void save_by(int way, const std::string& folder, const State& state, const World& world) {
  if (way == 0) save(folder, state, world);
  if (way == 1) save(folder, state, world, {.digest = DigestKind::sha_256});
  if (way < 2) return;
  AsyncSaver saver(folder, world, {.copy_in_background = way == 3});
  saver.save(state);
  saver.wait();
}

void play(const Case& each) {
  const TemporaryDirectory folder(memory_directory());
  run_worlds_or_throw(each.ranks, [&](const World& world) {
    Training training(each, world, each.seed);
    const std::string digest = sha256_of(training.content());
    const std::vector<std::string> names = names_in(training);
    if (!names.empty()) {
      const std::string name = names[each.flipped_tensor % names.size()];
      CAPTURE(name);
      if (world.rank() == each.flipped_rank) flip(training, name, each.flipped_bit);
      const std::string who = each.flipped_rank == 0 ? "rank 0 has other values than rank 1"
                                                     : "than rank " + std::to_string(each.flipped_rank);
      const Error error = error_of([&] { save_by(each.way, folder.path(), training.state(), world); });
      CHECK_ERROR(error, ErrorKind::desync, "first difference: '" + name, who);
      world.barrier();
      CHECK(list_sets(folder.path()).empty());
      world.barrier();
      if (world.rank() == each.flipped_rank) flip(training, name, each.flipped_bit);
    }
    save_by(each.way, folder.path(), training.state(), world);
    Training loaded(each, world, each.seed);
    for (at::Tensor& parameter : loaded.model->parameters()) parameter.detach().zero_();
    load(folder.path(), loaded.state(), world);
    CHECK(sha256_of(loaded.content()) == digest);
    for (const at::Tensor& buffer : loaded.model->buffers()) CHECK(at::equal(buffer, at::zeros({3}, buffer.options())));
  });
}

}  // namespace

// fault: 36
TEST_CASE("one random bit of one random tensor of one rank is found, whatever the state is and however it is saved") {
  for (long i = 0; i < cases(); ++i) {
    CAPTURE(i);
    play(Case(static_cast<std::uint64_t>(i)));
  }
}

}  // namespace random_replicas_test
