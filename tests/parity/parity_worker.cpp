// Trains models with Lockstep's DistributedDataParallel as reference.py does with PyTorch's, and compares.
//   parity_worker <folder of references> <ranks> <case>...
// Exits with 1 and says what differs, or with 0 and says by how little.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/view_as_real.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "examples/models/gpt.h"
#include "examples/models/mlp.h"
#include "examples/models/resnet18.h"
#include "examples/models/toy.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/job/launch/spawn.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/ddp/comm_hooks/default_hooks.h"
#include "lockstep/train/ddp/comm_hooks/power_sgd.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/parity/ddp_case.h"
#include "tests/parity/odd_models.h"
#include "tests/parity/support.h"
#include "tests/parity/view_models.h"

namespace {

using lockstep::Error;
using lockstep::ErrorKind;
using lockstep::World;
using parity::DdpCase;
using parity::tensor_of;

struct Step {
  at::Tensor x, y;
  int rank;
  std::int64_t index;
};

struct Reference {
  std::string name;
  lockstep::Checkpoint file;
  DdpCase how;
};

at::Tensor as_real(const at::Tensor& tensor) { return tensor.is_complex() ? at::view_as_real(tensor) : tensor; }

// The difference, which must be within the tolerance.
double compare(const std::string& what, const at::Tensor& got, const at::Tensor& expected, double tolerance) {
  const double distance = parity::difference(as_real(got.detach()), expected);
  if (distance <= tolerance) return distance;
  throw Error(ErrorKind::internal, fmt::format("{} differs from PyTorch's by {:g}", what, distance));
}

void require_same_bits(const World& world, const std::string& name, const at::Tensor& parameter) {
  const auto copies = world.group().all_gather(as_real(parameter.detach()).flatten().view(at::kByte));
  for (std::size_t rank = 1; rank < copies.size(); ++rank) {
    if (copies[rank].equal(copies[0])) continue;
    throw Error(ErrorKind::internal, fmt::format("{} has other bits on rank {} than on rank 0", name, rank));
  }
}

void load_initial(const lockstep::Checkpoint& file, torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  for (const auto& list : {model.named_parameters(), model.named_buffers()}) {
    for (const auto& item : list) as_real(item.value()).copy_(tensor_of(file, "initial/" + item.key()));
  }
}

double compare_state(const Reference& reference, const World& world, const torch::nn::Module& model) {
  double worst = 0;
  std::size_t compared = 0;
  for (const auto& item : model.named_parameters()) {
    require_same_bits(world, item.key(), item.value());
    worst = std::max(worst, compare(item.key(), item.value(), tensor_of(reference.file, "final/" + item.key()),
                                    reference.how.tolerance));
    ++compared;
  }
  for (const auto& item : model.named_buffers()) {
    const auto& expected = tensor_of(reference.file, fmt::format("final.{}/{}", world.rank(), item.key()));
    worst = std::max(worst, compare(item.key(), item.value(), expected, reference.how.tolerance));
    ++compared;
  }
  const auto initial = std::count_if(reference.file.tensors.begin(), reference.file.tensors.end(),
                                     [](const auto& entry) { return entry.first.starts_with("initial/"); });
  if (compared == static_cast<std::size_t>(initial)) return worst;
  throw Error(ErrorKind::internal, fmt::format("PyTorch's model has {} tensors, this one {}", initial, compared));
}

lockstep::CommHook hook_of(const std::string& name) {
  if (name == "all_reduce") return lockstep::all_reduce_hook();
  if (name == "fp16") return lockstep::fp16_compress_hook();
  if (name == "bf16") return lockstep::bf16_compress_hook();
  if (name == "power_sgd") return lockstep::PowerSgd({.start_power_sgd_iter = 2}).hook();
  throw Error(ErrorKind::invalid_argument, "the reference has an unknown hook " + name);
}

// loss_of(ddp, step): the loss of what the wrapper's forward gives.
template <typename Model, typename LossOf>
void train_and_compare(const Reference& reference, const World& world, Model model, LossOf loss_of) {
  // The other ranks keep their own random weights, which the wrapper has to replace.
  if (world.is_main_rank()) load_initial(reference.file, *model);
  lockstep::DistributedDataParallel ddp(model, world.group(), reference.how.options);
  if (!reference.how.hook.empty()) ddp.register_comm_hook(hook_of(reference.how.hook));
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.01).momentum(reference.how.momentum));

  const at::Tensor x = tensor_of(reference.file, "x")[world.rank()], y = tensor_of(reference.file, "y")[world.rank()];
  const at::Tensor losses = tensor_of(reference.file, "loss")[world.rank()];
  double worst_loss = 0;
  for (std::int64_t step = 0; step < losses.size(0); ++step) {
    optimizer.zero_grad();
    const auto parts_x = x[step].chunk(reference.how.accumulate), parts_y = y[step].chunk(reference.how.accumulate);
    at::Tensor loss;
    const auto backward = [&](std::size_t i) {
      loss = loss_of(ddp, Step{parts_x[i], parts_y[i], world.rank(), step});
      loss.backward();
    };
    {
      const auto local = ddp.no_sync();
      for (std::size_t i = 0; i + 1 < parts_x.size(); ++i) backward(i);
    }
    backward(parts_x.size() - 1);
    optimizer.step();
    worst_loss = std::max(worst_loss, compare(fmt::format("the loss of step {}", step), loss.to(at::kDouble),
                                              losses[step], reference.how.tolerance));
  }
  const double worst_state = compare_state(reference, world, *model);
  if (!world.is_main_rank()) return;
  std::cout << fmt::format("{} on {} ranks, {} steps: losses within {:.2g}, parameters and buffers within {:.2g}\n",
                           reference.name, world.size(), losses.size(0), worst_loss, worst_state);
}

const auto kSquares = [](auto& ddp, const Step& step) { return parity::mean_squared_error(ddp(step.x), step.y); };
const auto kClasses = [](auto& ddp, const Step& step) { return parity::cross_entropy(ddp(step.x), step.y); };

at::Tensor heads_loss(const at::Tensor& left, const at::Tensor& right, const at::Tensor& y) {
  return parity::mean_squared_error(left, y).add(parity::mean_squared_error(right, y.mul(2)));
}

void train_example(const Reference& reference, const World& world) {
  const std::string& model = reference.how.model;
  if (model == "toy") return train_and_compare(reference, world, models::Toy(), kSquares);
  if (model == "mlp") return train_and_compare(reference, world, models::Mlp(), kClasses);
  if (model == "resnet18") return train_and_compare(reference, world, models::ResNet18(10), kClasses);
  if (model == "small_gpt") {
    const models::GptOptions small{.vocabulary = 33, .context = 16, .layers = 2, .heads = 2, .width = 32};
    return train_and_compare(reference, world, models::Gpt(small), kClasses);
  }
  throw Error(ErrorKind::invalid_argument, "the reference is of an unknown model " + model);
}

void train(const Reference& reference, const World& world) {
  const std::string& model = reference.how.model;
  if (model == "conv_norm") return train_and_compare(reference, world, parity::ConvNorm(), kClasses);
  if (model == "recurrent") return train_and_compare(reference, world, parity::Recurrent(), kSquares);
  if (model == "sparse_words") return train_and_compare(reference, world, parity::SparseWords(), kSquares);
  if (model == "shared") return train_and_compare(reference, world, parity::Shared(), kClasses);
  if (model == "frozen") return train_and_compare(reference, world, parity::Frozen(), kSquares);
  if (model == "mixed_types") return train_and_compare(reference, world, parity::MixedTypes(), kSquares);
  if (model == "complex") return train_and_compare(reference, world, parity::Complex(), kSquares);
  if (model == "weight_norm") return train_and_compare(reference, world, parity::WeightNorm(), kClasses);
  if (model == "tied_table") return train_and_compare(reference, world, parity::TiedTable(), kClasses);
  if (model == "experts") return train_and_compare(reference, world, parity::Experts(), kSquares);
  if (model == "tuple_heads") {
    return train_and_compare(reference, world, parity::TupleHeads(), [](auto& ddp, const Step& step) {
      const auto [left, right] = ddp(step.x);
      return heads_loss(left, right, step.y);
    });
  }
  if (model == "named_heads") {
    return train_and_compare(reference, world, parity::NamedHeads(), [](auto& ddp, const Step& step) {
      const auto heads = ddp(step.x);
      return heads_loss(heads.at("left"), heads.at("right"), step.y);
    });
  }
  if (model == "branches") {
    // Odd ranks take the branch in no step, nobody in every fourth.
    return train_and_compare(reference, world, parity::Branches(), [](auto& ddp, const Step& step) {
      const bool take_extra = step.rank % 2 == 0 && step.index % 4 != 3;
      return parity::mean_squared_error(ddp(step.x, take_extra), step.y);
    });
  }
  train_example(reference, world);
}

void work(int rank, const std::string& folder, const std::vector<std::string>& cases) {
  at::set_num_threads(1);
  at::manual_seed(1000 + rank);
  const World world = lockstep::init_process_group();
  for (const std::string& name : cases) {
    const std::string path = fmt::format("{}/{}_{}.safetensors", folder, name, world.size());
    Reference reference{name, lockstep::load_checkpoint(path, lockstep::Integrity::if_present), {}};
    reference.how = parity::read_case(reference.file.metadata);
    try {
      train(reference, world);
    } catch (const Error& error) {
      throw Error(error.kind(), name + ": " + error.what());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: parity_worker <folder of references> <ranks> <case>...\n";
    return 2;
  }
  try {
    const std::vector<std::string> cases(argv + 3, argv + argc);
    lockstep::spawn(argc, argv, [&](int rank) { work(rank, argv[1], cases); },
                    {.nprocs = std::stoi(argv[2]), .threads_per_rank = 1});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
