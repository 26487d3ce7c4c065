// Collects results of all ranks: any objects, and means and predictions of a test set that they share.
//   build/bin/gather_objects [ranks]
#include <ATen/ATen.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/arguments.h"
#include "lockstep/lockstep.h"

namespace {

// A dictionary of values of any kind: a tensor, a list, another dictionary.
c10::IValue outputs_of(int rank) {
  c10::Dict<std::string, double> losses;
  losses.insert("train", 0.5 + rank);
  losses.insert("test", 0.75 + rank);
  c10::impl::GenericDict outputs(c10::StringType::get(), c10::AnyType::get());
  outputs.insert("tensor", at::full({2}, rank, at::kLong));
  outputs.insert("list", c10::List<std::int64_t>({1, 2, 3, rank}));
  outputs.insert("dict", losses);
  return outputs;
}

void gather_dictionaries(const lockstep::World& world) {
  const std::vector<c10::IValue> all = world.all_gather_object(outputs_of(world.rank()));
  if (!world.is_main_rank()) return;
  for (const c10::IValue& outputs : all) {
    const auto dictionary = outputs.toGenericDict();
    std::cout << "tensor: " << dictionary.at("tensor").toTensor()[0].item<std::int64_t>()
              << "  list: " << dictionary.at("list") << "  dict: " << dictionary.at("dict") << std::endl;
  }
}

// The program's own type: with these two functions ranks can exchange it.
struct Mistake {
  std::int64_t sample;
  std::string why;
};

}  // namespace

template <>
struct lockstep::ObjectCodec<Mistake> {
  using Pair = std::pair<std::int64_t, std::string>;
  static std::string encode(const Mistake& mistake) { return ObjectCodec<Pair>::encode({mistake.sample, mistake.why}); }
  static Mistake decode(std::string_view bytes) {
    auto [sample, why] = ObjectCodec<Pair>::decode(bytes);
    return {sample, std::move(why)};
  }
};

namespace {

// Ten samples; sample i is the number i.
struct TestSet {
  static constexpr std::int64_t kSize = 10;

  std::size_t size() const { return kSize; }
  at::Tensor get_batch(std::span<const std::int64_t> indices) const {
    return at::tensor(at::IntArrayRef(indices.data(), indices.size()), at::kLong);
  }
};

// The model squares a number, and finds 3 and 7 difficult.
void test(const lockstep::World& world) {
  const TestSet samples;
  lockstep::DistributedSampler sampler(samples.size(), world, {.shuffle = false});
  std::vector<at::Tensor> predictions;
  std::vector<Mistake> mistakes;
  for (const at::Tensor& x : lockstep::loader(samples, sampler, {.batch_size = 2, .workers = 0})) {
    predictions.push_back(x * x);
    for (const std::int64_t i : {3, 7}) {
      if (x.eq(i).any().item<bool>()) mistakes.push_back({i, "found by rank " + std::to_string(world.rank())});
    }
  }
  const at::Tensor all = lockstep::gather_predictions(world, sampler, at::cat(predictions));
  const auto everyones = world.gather_object(mistakes);
  if (!world.is_main_rank()) return;
  std::cout << all.size(0) << " predictions, in the data set's order:";
  for (std::int64_t i = 0; i < all.size(0); ++i) std::cout << ' ' << all[i].item<std::int64_t>();
  std::cout << '\n';
  for (const auto& of_rank : everyones) {
    for (const Mistake& mistake : of_rank) std::cout << "sample " << mistake.sample << ": " << mistake.why << '\n';
  }
}

// The same samples, with the squares that a model should find.
struct LabelledTestSet {
  struct Batch {
    at::Tensor x, y;
  };
  std::size_t size() const { return TestSet::kSize; }
  Batch get_batch(std::span<const std::int64_t> indices) const {
    const at::Tensor x = TestSet().get_batch(indices);
    return {x, x * x};
  }
};

// A model that is wrong for 3 and 7.
struct SquareImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x * x + x.eq(3) + x.eq(7); }
};
TORCH_MODULE(Square);

void evaluate(const lockstep::World& world) {
  Square model;
  const LabelledTestSet samples;
  const auto [accuracy, error] =
      lockstep::evaluate(model, samples, world, {.batch_size = 4}, [](const at::Tensor& output, const at::Tensor& y) {
        return std::array{output.eq(y).to(at::kDouble).mean().item<double>(),
                          (output - y).abs().to(at::kDouble).mean().item<double>()};
      });
  log_rank0(world, "accuracy %.2f, mean error %.2f", accuracy, error);
}

void demo_gather(int) {
  const auto world = lockstep::init_process_group();
  gather_dictionaries(world);
  evaluate(world);
  test(world);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int ranks = number_at(1, argc, argv, 2);
    lockstep::spawn(argc, argv, demo_gather, {.nprocs = ranks});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gather_objects: %s\n", error.what());
    return 1;
  }
}
