// What a training loop may rely on, beyond what each part of it promises.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/state_digest.h"
#include "lockstep/train/data/distributed_sampler.h"
#include "lockstep/train/ddp/comm_hooks/default_hooks.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"
#include "tests/unit/ddp/models.h"

namespace steps_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

constexpr std::int64_t kLarge = 1000;  // elements: what the wrapper does per forward may touch less

// Names of the operators that compute() calls in this thread with a tensor of at least kLarge elements, in order; and
// what it returns.
template <class Compute>
std::pair<std::vector<std::string>, at::Tensor> large_operators_of(const Compute& compute) {
  static thread_local std::vector<std::string> names;  // a callback is a function without state
  names.clear();
  const auto note = [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
    const auto is_large = [](const c10::IValue& input) {
      return input.isTensor() && input.toTensor().numel() >= kLarge;
    };
    if (std::ranges::any_of(call.inputs(), is_large)) names.emplace_back(call.name());
    return nullptr;
  };
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(note).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  at::Tensor output = compute();
  at::removeCallback(handle);
  return {names, std::move(output)};
}

template <class Optimizer, class Options>
void train(const ProcessGroup& group, const Options& options, int steps) {
  Forked model;
  set_weights(model, group.rank());
  DistributedDataParallel ddp(model, group);
  Optimizer optimizer(ddp.parameters(), options);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    (ddp(wave({3, 4}, step * 7 + group.rank()), true) - 1).square().mean().backward();
    optimizer.step();
  }
  const auto digests = group.all_gather_object(sha256_of(*model, optimizer));
  for (const std::string& digest : digests) CHECK(digest == digests.front());
}

// Two layers, and something to do when the gradient of what is between them is there.
struct TwoImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = first->forward(x).relu();
    if (between) hidden.register_hook([this](const at::Tensor&) { between(); });
    return last->forward(hidden);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(20, 30));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(30, 5));
  std::function<void()> between;
};
TORCH_MODULE(Two);

std::uint64_t recorded_operations() {
  FlightRecord record;
  return process_recorder().add(record).number;
}

// In bytes, since the last call of forget_peak().
std::size_t peak_memory() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    std::size_t kib = 0;
    if (word == "VmHWM:" && file >> kib) return kib << 10;
  }
  return 0;
}
bool forget_peak() { return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush); }

}  // namespace

// feature: C-11, E-24
TEST_CASE("many steps without any barrier keep parameters and the state of optimizers the same bits on all ranks") {
  using torch::optim::Adam, torch::optim::AdamW, torch::optim::SGD;
  run_group_or_throw(3, Over::arena, [](const ProcessGroup& group) {
    train<SGD>(group, torch::optim::SGDOptions(0.05), 200);
    train<SGD>(group, torch::optim::SGDOptions(0.05).momentum(0.9), 1000);
    train<Adam>(group, torch::optim::AdamOptions(0.01), 200);
    train<AdamW>(group, torch::optim::AdamWOptions(0.01), 200);
  });
  run_group_or_throw(2, Over::links, [](const ProcessGroup& group) {
    train<SGD>(group, torch::optim::SGDOptions(0.05).momentum(0.9), 200);
  });
}

// feature: E-08
TEST_CASE("what the last layer communicates is over while the first has not begun its backward") {
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      Two model;
      DistributedDataParallel ddp(model, group, {.bucketing = Bucketing::off});
      std::vector<Work> works;
      ddp.register_comm_hook([&](GradBucket& bucket, const ProcessGroup& over) -> BucketResult {
        const at::Tensor values = bucket.buffer();
        const Work work = over.all_reduce_async(values, ReduceOp::avg);
        works.push_back(work);
        return [work, values] {
          work.wait();
          return values;
        };
      });
      // The first one shows the order of buckets.
      ddp(wave({6, 20}, group.rank())).square().mean().backward();
      ddp.zero_grad();
      works.clear();
      bool was_over = false;
      model->between = [&] {
        REQUIRE(!works.empty());
        works.front().wait(Deadline::after(std::chrono::seconds(20)));
        was_over = !model->first->weight.grad().defined();
      };
      ddp(wave({6, 20}, group.rank())).square().mean().backward();
      CHECK(was_over);
      CHECK(works.size() == 4);
      for (const auto& parameter : ddp.parameters()) CHECK(same_on_all_ranks(group, parameter.grad()));
    });
  }
}

// feature: A-03, E-03
TEST_CASE("a wrapper needs a group, and in a group of one it communicates nothing") {
  CHECK_FALSE(std::is_constructible_v<DistributedDataParallel<Two>, Two>);
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    const std::uint64_t before = recorded_operations();
    Two model;
    DistributedDataParallel ddp(model, group);
    ddp(wave({6, 20}, 0)).sum().backward();
    CHECK(recorded_operations() == before + 1);
  });
}

// feature: C-05
TEST_CASE("a hook that adds up and divides by the number of ranks gives the bits of the average") {
  for (const int ranks : {1, 2, 3, 5}) {
    run_group_or_throw(ranks, Over::links, [](const ProcessGroup& group) {
      Two averaged, divided;
      set_weights(averaged, 1);
      set_weights(divided, 1);
      DistributedDataParallel by_average(averaged, group), by_division(divided, group);
      by_average.register_comm_hook(all_reduce_hook());
      by_division.register_comm_hook([size = group.size()](GradBucket& bucket, const ProcessGroup& over) {
        const at::Tensor sum = bucket.buffer();
        over.all_reduce(sum);
        return BucketResult([sum, size] { return sum.div_(size); });
      });
      for (auto* ddp : {&by_average, &by_division}) (*ddp)(wave({6, 20}, group.rank())).square().mean().backward();
      for (std::size_t i = 0; i < averaged->parameters().size(); ++i) {
        CHECK(at::equal(averaged->parameters()[i].grad(), divided->parameters()[i].grad()));
      }
    });
  }
}

// feature: E-21
TEST_CASE("the forward of a wrapped model calls the operators of the model, and no other on what grows with it") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    torch::nn::Linear model(1000, 1000);
    DistributedDataParallel ddp(model, group);
    const at::Tensor x = at::ones({64, 1000});
    const auto [plain, of_plain] = large_operators_of([&] { return model->forward(x); });
    CHECK(std::ranges::count(plain, "aten::addmm") == 1);
    for (int forward = 0; forward < 3; ++forward) {
      const auto [wrapped, of_wrapped] = large_operators_of([&] { return ddp(x); });
      CHECK(at::equal(of_plain, of_wrapped));
      if (forward > 0) CHECK(wrapped == plain);  // the first compares the data of the ranks
    }
  });
}

// feature: E-25
TEST_CASE("training with the wrapper takes room for buckets of the gradients, and no further copy of the model") {
  constexpr std::size_t kLayers = 8, kWidth = 1536;  // 9 MiB a layer
  constexpr std::size_t kGradients = kLayers * kWidth * kWidth * sizeof(float);
  bool can_tell = true;
  std::size_t plain = SIZE_MAX, wrapped = SIZE_MAX;
  run_group_or_throw(2, Over::links, [&](const ProcessGroup& group) {
    torch::nn::Sequential model;
    for (std::size_t i = 0; i < kLayers; ++i) model->push_back(torch::nn::Linear(kWidth, kWidth));
    const at::Tensor x = at::ones({2, static_cast<std::int64_t>(kWidth)});
    const auto peak_of = [&](auto&& forward, std::size_t& peak) {
      for (int step = 0; step < 20; ++step) {  // the least of many: a rank that is ahead has sent more
        group.barrier();
        if (group.rank() == 0) can_tell = can_tell && forget_peak();
        group.barrier();
        model->zero_grad();
        forward().sum().backward();
        group.barrier();
        if (group.rank() == 0 && step >= 2) peak = std::min(peak, peak_memory());
      }
      group.barrier();
    };
    peak_of([&] { return model->forward(x); }, plain);
    DistributedDataParallel ddp(model, group);
    peak_of([&] { return ddp(x); }, wrapped);
  });
  if (!can_tell) return;  // no such file here
  CAPTURE(plain >> 20);
  CAPTURE(wrapped >> 20);
  CHECK(plain > 4 * kGradients);                 // of two ranks, with their parameters
  CHECK(wrapped < plain + kGradients * 14 / 5);  // buckets of two ranks take twice that, and a copy once more
}

// feature: F-12
TEST_CASE("without a sampler every rank has all samples, of which DDP warns once") {
  const auto seen_by_three = [](auto&& samples_of) {
    std::size_t seen = 0;
    for (int rank = 0; rank < 3; ++rank) seen += samples_of(rank);
    return seen;
  };
  CHECK(seen_by_three([](int) { return DistributedSampler(12, 1, 0).indices().size(); }) == 36);
  CHECK(seen_by_three([](int rank) { return DistributedSampler(12, 3, rank).indices().size(); }) == 12);
  const auto warnings = [](bool equal) {
    const CapturedLog log;
    run_group_or_throw(3, Over::links, [&](const ProcessGroup& group) {
      Two model;
      DistributedDataParallel ddp(model, group);
      for (int step = 0; step < 3; ++step) ddp(wave({6, 20}, equal ? 1 : group.rank())).sum().backward();
    });
    int count = 0;
    const std::string warning = "all ranks passed the same tensor to their first forward pass";
    if (equal) log.await(warning);
    const std::string text = log.text();
    for (std::size_t at = text.find(warning); at != std::string::npos; at = text.find(warning, at + 1)) ++count;
    CHECK(contains(text, "DistributedSampler") == (count > 0));
    return count;
  };
  CHECK(warnings(true) == 1);
  CHECK(warnings(false) == 0);
}

}  // namespace steps_test
