#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "examples/models/gpt.h"
#include "lockstep/base/error.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"
#include "tests/support/standard_error_of.h"
#include "tests/unit/ddp/shard_worlds.h"

namespace shards_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

// Wide enough that one of its weights is reduced where it lies.
struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    first = register_module("first", torch::nn::Linear(20, 256));
    dropout = register_module("dropout", torch::nn::Dropout(0.3));
    middle = register_module("middle", torch::nn::Linear(256, 256));
    last = register_module("last", torch::nn::Linear(256, 5));
  }
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(at::relu(middle->forward(dropout->forward(at::relu(first->forward(x))))));
  }
  torch::nn::Linear first = nullptr, middle = nullptr, last = nullptr;
  torch::nn::Dropout dropout = nullptr;
};
TORCH_MODULE(Mlp);

struct ConvImpl : torch::nn::Module {
  ConvImpl() {
    convolution = register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    linear = register_module("linear", torch::nn::Linear(8, 5));
    // Its mean over shards would overflow.
    largest = register_buffer("largest", at::full({3}, std::numeric_limits<float>::max()));
  }
  at::Tensor forward(const at::Tensor& x) {
    return linear->forward(at::relu(norm->forward(convolution->forward(x))).mean({2, 3}));
  }
  torch::nn::Conv2d convolution = nullptr;
  torch::nn::BatchNorm2d norm = nullptr;
  torch::nn::Linear linear = nullptr;
  at::Tensor largest;
};
TORCH_MODULE(Conv);

// Two heads, of which a shard may use one, and a third that nobody uses.
struct ForkedImpl : torch::nn::Module {
  ForkedImpl() {
    left = register_module("left", torch::nn::Linear(4, 4));
    right = register_module("right", torch::nn::Linear(4, 4));
    idle = register_module("idle", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x, bool both) {
    return both ? left->forward(x) + right->forward(x) : left->forward(x);
  }
  torch::nn::Linear left = nullptr, right = nullptr, idle = nullptr;
};
TORCH_MODULE(Forked);

}  // namespace

// feature: E-07, G-11
TEST_CASE("an MLP with dropout has the same bits on any number of ranks") {
  const auto loss_of = [](auto& ddp, const Shard& shard) {
    return (ddp(wave({6, 20}, shift_of(shard))) - 1).square().mean();
  };
  check_any_world([&](const ProcessGroup& group) { return train<Mlp>(group, loss_of, 4); });
}

TEST_CASE("so has a convolution with batch norm, whose statistics are the mean over shards") {
  const auto loss_of = [](auto& ddp, const Shard& shard) {
    return (ddp(wave({4, 3, 8, 8}, shift_of(shard))) - 1).square().mean();
  };
  check_any_world([&](const ProcessGroup& group) {
    Conv model;
    const Tensors state = train<Conv>(group, loss_of, 3, 1, model);
    CHECK(model->norm->num_batches_tracked.item<std::int64_t>() == 3);
    CHECK(model->norm->running_mean.abs().sum().item<float>() > 0);
    CHECK(model->largest[0].item<float>() == std::numeric_limits<float>::max());
    return state;
  });
}

TEST_CASE("so has a small GPT with dropout") {
  const auto loss_of = [](auto& ddp, const Shard& shard) {
    const at::Tensor tokens = (at::arange(2 * 9, at::kLong) * 7 + shard.index * 5 + 1).remainder(31).reshape({2, 9});
    const at::Tensor logits = ddp(tokens.slice(1, 0, 8).contiguous());
    return at::cross_entropy_loss(logits.flatten(0, 1), tokens.slice(1, 1, 9).flatten());
  };
  check_any_world([&](const ProcessGroup& group) {
    const models::Gpt model(
        models::GptOptions{.vocabulary = 31, .context = 8, .layers = 2, .heads = 2, .width = 16, .dropout = 0.2});
    return train<models::Gpt>(group, loss_of, 2, 1, model);
  });
}

TEST_CASE("so has gradient accumulation, and gradients of bfloat16") {
  const auto loss_of = [](auto& ddp, const Shard& shard) {
    return (ddp(wave({6, 20}, shift_of(shard))) - 1).square().mean();
  };
  check_any_world([&](const ProcessGroup& group) { return train<Mlp>(group, loss_of, 2, 3); });
  const auto narrow_loss_of = [](auto& ddp, const Shard& shard) {
    return (ddp(wave({6, 20}, shift_of(shard)).to(at::kBFloat16)) - 1).square().mean();
  };
  check_any_world([&](const ProcessGroup& group) {
    Mlp model;
    model->to(at::kBFloat16);
    return train<Mlp>(group, narrow_loss_of, 2, 1, model);
  });
}

namespace {

// Of rank r: numbers of many magnitudes.
at::Tensor operand(int rank, std::int64_t count, at::ScalarType dtype) {
  const at::Tensor numbers = at::sin(at::arange(count, at::kDouble) * 1.7 + rank) *
                             at::exp(at::cos(at::arange(count, at::kDouble) * 0.3 + rank * 5) * 9);
  return dtype == at::kLong ? (numbers * 1e12).to(dtype) : numbers.to(dtype);
}

at::Tensor naive_tree(int first, int ranks, std::int64_t count, at::ScalarType dtype, bool average) {
  if (ranks == 1) return operand(first, count, dtype);
  const at::Tensor left = naive_tree(first, ranks / 2, count, dtype, average);
  const at::Tensor right = naive_tree(first + ranks / 2, ranks / 2, count, dtype, average);
  return average ? (left + right) / 2 : left + right;
}

}  // namespace

TEST_CASE("an all-reduce as a tree adds lists of tensors of any size in pairs") {
  constexpr std::int64_t kSizes[] = {0, 1, 1023, 3, 700'001};
  for (const Over transport : {Over::arena, Over::links}) {
    for (const int ranks : kWorlds) {
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
        const bool average = dtype != at::kLong;
        Tensors expected;
        for (const auto size : kSizes) expected.push_back(naive_tree(0, ranks, size, dtype, average));
        run_group_or_throw(ranks, transport, [&](const ProcessGroup& group) {
          Tensors own;
          for (const auto size : kSizes) own.push_back(operand(group.rank(), size, dtype));
          Tensors together;
          for (const at::Tensor& tensor : own) together.push_back(tensor.clone());
          group.all_reduce(own, average ? ReduceOp::avg : ReduceOp::sum, {.order = Order::tree});
          check_same(own, expected);
          if (!average) return;
          average_over_ranks(together, group);
          check_same(together, expected);
        });
      }
    }
  }
}

TEST_CASE("gradients and loss are the mean over shards, added up in pairs") {
  at::set_num_threads(1);  // as in a shard: the bits of products depend on it
  Mlp alone;
  set_weights(alone);
  alone->eval();
  std::vector<Tensors> of_shard;
  double losses[kShards];
  for (int shard = 0; shard < kShards; ++shard) {
    alone->zero_grad();
    const at::Tensor loss = alone->forward(wave({6, 20}, shard)).square().mean();
    loss.backward();
    losses[shard] = loss.item<double>();
    of_shard.emplace_back();
    for (const auto& parameter : alone->parameters()) of_shard.back().push_back(parameter.grad().clone());
  }
  for (int width = kShards; width > 1; width /= 2) {
    for (int i = 0; i < width / 2; ++i) {
      losses[i] = (losses[2 * i] + losses[2 * i + 1]) / 2;
      for (std::size_t p = 0; p < of_shard[0].size(); ++p) {
        of_shard[static_cast<std::size_t>(i)][p] =
            (of_shard[static_cast<std::size_t>(2 * i)][p] + of_shard[static_cast<std::size_t>(2 * i) + 1][p]) / 2;
      }
    }
  }
  run_group_or_throw(4, Over::arena, [&](const ProcessGroup& group) {
    Mlp model;
    set_weights(model);
    model->eval();
    DistributedDataParallel ddp(model, group, kLockstep);
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::ones_like(parameter);
    const double loss = ddp.for_each_shard([&](const Shard& shard) {
      const at::Tensor own = ddp(wave({6, 20}, shard.index)).square().mean();
      own.backward();
      return own.item<double>();
    });
    CHECK(loss == losses[0]);
    Tensors gradients;
    for (const auto& parameter : model->parameters()) gradients.push_back(parameter.grad());
    check_same(gradients, of_shard[0]);
    CHECK(group.is_shared(model->middle->weight.grad()));
  });
}

TEST_CASE("a parameter that some shards do not use has zero from them, and one that no shard uses has no gradient") {
  check_any_world([](const ProcessGroup& group) {
    Forked model;
    const Tensors state = train<Forked>(
        group,
        [](auto& ddp, const Shard& shard) {
          return ddp(wave({2, 4}, shard.index), shard.index == 3 || shard.index == 6).square().sum();
        },
        2, 1, model);
    CHECK(model->left->weight.grad().defined());
    CHECK(model->right->weight.grad().defined());
    CHECK_FALSE(model->idle->weight.grad().defined());
    return state;
  });
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Forked model;
    DistributedDataParallel ddp(model, group, kLockstep);
    ddp.for_each_shard([&](const Shard& shard) {
      ddp(at::zeros({1, 4}), shard.index == 6).sum().backward();
      return 0.0;
    });
    CHECK(at::equal(model->right->bias.grad(), at::full({4}, 1.0 / kShards)));
  });
}

TEST_CASE("random numbers belong to seed, step and shard, and the generator is left as it was") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    Mlp model;
    const auto draw = [&](std::uint64_t seed, std::uint64_t first_step) {
      DistributedDataParallel ddp(model, group, {.lockstep = {.shards = 4, .seed = seed}});
      ddp.load_lockstep_state({.step = first_step, .shards = 4, .seed = seed, .threads = 1});
      std::vector<double> drawn;
      for (int step = 0; step < 2; ++step) {
        ddp.for_each_shard([&](const Shard& shard) {
          CHECK(shard.step == first_step + static_cast<std::uint64_t>(step));
          CHECK(shard.count == 4);
          drawn.push_back(at::rand({}, at::kDouble).item<double>());
          return 0.0;
        });
      }
      CHECK(ddp.lockstep_state().step == first_step + 2);
      return drawn;
    };
    at::manual_seed(5);
    const double expected = at::rand({}).item<double>();
    at::manual_seed(5);
    const auto drawn = draw(1, 0);
    CHECK(at::rand({}).item<double>() == expected);
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) CHECK(drawn[i] != drawn[j]);
    }
    CHECK(draw(1, 0) == drawn);
    CHECK(draw(2, 0) != drawn);
    const auto later = draw(1, 1);
    CHECK(std::vector(later.begin(), later.begin() + 4) == std::vector(drawn.begin() + 4, drawn.end()));
  });
}

TEST_CASE("a callback that throws leaves no gradients, the buffers of before, and the step to be done again") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    Conv model;
    DistributedDataParallel ddp(model, group, kLockstep);
    const auto failing = [&](const Shard& shard) {
      ddp(wave({4, 3, 8, 8}, shard.index)).sum().backward();
      if (shard.index == 5) throw std::runtime_error("boom");
      return 0.0;
    };
    CHECK_THROWS_WITH(ddp.for_each_shard(failing), "boom");
    CHECK(model->norm->num_batches_tracked.item<std::int64_t>() == 0);
    CHECK(model->norm->running_mean.abs().sum().item<float>() == 0);
    CHECK_FALSE(model->linear->weight.grad().defined());
    CHECK(ddp.lockstep_state().step == 0);
    CHECK(ddp.for_each_shard([&](const Shard& shard) { return shard.index * 1.0; }) == 3.5);
  });
}

TEST_CASE("a buffer that is a part of a larger tensor belongs to the step like any other") {
  struct ColumnImpl : torch::nn::Module {
    ColumnImpl() {
      weight = register_parameter("weight", at::ones({3}));
      mean = register_buffer("mean", at::zeros({3, 2}).select(1, 0));
    }
    at::Tensor forward(const at::Tensor& x) {
      const at::NoGradGuard no_grad;
      mean.mul_(0.5).add_(x.mean(0), 0.5);
      const at::AutoGradMode grad_mode(true);
      return (x * weight).sum();
    }
    at::Tensor weight, mean;
  };
  std::vector<at::Tensor> found;
  for (const int ranks : {1, 2, 4}) {
    run_group_or_throw(ranks, Over::arena, [&](const ProcessGroup& group) {
      const auto model = std::make_shared<ColumnImpl>();
      DistributedDataParallel ddp(model, group, {.lockstep = {.shards = 4}});
      for (int step = 0; step < 2; ++step) {
        ddp.for_each_shard([&](const Shard& shard) {
          ddp(wave({5, 3}, shard.index + 4 * step)).backward();
          return 0.0;
        });
      }
      for (const at::Tensor& theirs : group.all_gather(model->mean)) CHECK(at::equal(theirs, model->mean));
      if (group.rank() == 0) found.push_back(model->mean.clone());
    });
  }
  CHECK(found[0].abs().sum().item<double>() > 0);
  for (const at::Tensor& one : found) CHECK(at::equal(one, found[0]));
}

TEST_CASE("an integer buffer must be the same after every shard, or all ranks are told") {
  for (const bool within_rank : {true, false}) {
    const auto errors = run_group(2, Over::arena, [&](const ProcessGroup& group) {
      Conv model;
      DistributedDataParallel ddp(model, group, kLockstep);
      ddp.for_each_shard([&](const Shard& shard) {
        model->norm->num_batches_tracked.fill_(within_rank ? shard.index == 1 : shard.index >= 4);
        return 0.0;
      });
    });
    for (const auto& error : errors) {
      const Error told = error_of([&] { std::rethrow_exception(error); });
      CHECK(told.kind() == ErrorKind::invalid_argument);
      CHECK(contains(told.what(), "shards computed different values for buffer norm.num_batches_tracked, whose dtype"));
    }
  }
}

namespace {

// The text that all ranks get when they construct it.
std::string refusal(int ranks, const std::function<LockstepMode(int rank)>& mode_of) {
  std::vector<std::string> texts;
  const auto errors = run_group(ranks, Over::arena, [&](const ProcessGroup& group) {
    DistributedDataParallel ddp(Conv(), group, {.lockstep = mode_of(group.rank())});
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    texts.emplace_back(error_of([&] { std::rethrow_exception(error); }).what());
    CHECK(texts.back() == texts.front());
  }
  return texts.front();
}

}  // namespace

TEST_CASE("what cannot work is refused on all ranks") {
  const auto shards = [](int count) { return [count](int) { return LockstepMode{.shards = count}; }; };
  CHECK(refusal(2, shards(6)) == "lockstep mode: the number of shards is 6; it has to be a power of two");
  CHECK(refusal(2, shards(-4)) == "lockstep mode: the number of shards is -4; it has to be a power of two");
  CHECK(refusal(4, shards(2)) ==
        "lockstep mode: 2 shards are too few for 4 ranks; use at least as many shards as ranks");
  CHECK(refusal(3, shards(8)) == "lockstep mode: the number of ranks is 3; it has to be a power of two");
  CHECK(refusal(2, [](int rank) { return LockstepMode{.shards = 2 << rank, .seed = 9}; }) ==
        "lockstep mode: rank 0 has 2 shards, seed 9 and threads 1, rank 1 has 4 shards, seed 9 and threads 1");
  CHECK(refusal(2, [](int rank) { return LockstepMode{.shards = 2, .threads = 1 + rank}; }) ==
        "lockstep mode: rank 0 has 2 shards, seed 0 and threads 1, rank 1 has 2 shards, seed 0 and threads 2");
  CHECK(refusal(2, [](int) { return LockstepMode{.shards = 2, .threads = 0}; }) ==
        "lockstep mode: threads is 0; give 1 or more");
  CHECK(refusal(4,
                [](int rank) {
                  at::globalContext().setFlushDenormal(rank == 2);  // of the thread that the rank is
                  return LockstepMode{.shards = 4};
                }) ==
        "lockstep mode: rank 0 has denormal numbers flushed to zero: no, rank 2 has denormal numbers flushed to zero: "
        "yes, and the bits of results depend on it; run all ranks on the same kind of machine with the same libtorch, "
        "settings and environment");
}

namespace {

// Large enough that torch shares its layers' work among threads.
struct WideImpl : torch::nn::Module {
  explicit WideImpl(bool convolves) {
    if (convolves) {
      convolution = register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3)));
      norm = register_module("norm", torch::nn::BatchNorm2d(16));
    }
    linear = register_module("linear", torch::nn::Linear(convolves ? 16 * 30 * 30 : 3 * 32 * 32, 64));
    last = register_module("last", torch::nn::Linear(64, 10));
  }
  at::Tensor forward(at::Tensor x) {
    if (!convolution.is_empty()) x = at::relu(norm->forward(convolution->forward(x)));
    return last->forward(at::relu(linear->forward(x.flatten(1))));
  }
  torch::nn::Conv2d convolution = nullptr;
  torch::nn::BatchNorm2d norm = nullptr;
  torch::nn::Linear linear = nullptr, last = nullptr;
};
TORCH_MODULE(Wide);

}  // namespace

TEST_CASE("the mode's number of threads is what a shard has, and the caller's own comes back") {
  const int threads = at::get_num_threads();
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    for (const int own : {1, 2}) {
      DistributedDataParallel ddp(Mlp(), group, {.lockstep = {.shards = 2, .threads = own}});
      CHECK(ddp.lockstep_state().threads == own);
      for (const int callers : {1, 2, 3}) {
        at::set_num_threads(callers);
        ddp.for_each_shard([&](const Shard&) {
          CHECK(at::get_num_threads() == own);
          return 0.0;
        });
        CHECK(at::get_num_threads() == callers);
        CHECK_THROWS(ddp.for_each_shard([&](const Shard&) -> double {
          at::set_num_threads(7);
          throw std::runtime_error("boom");
        }));
        CHECK(at::get_num_threads() == callers);
      }
    }
  });
  at::set_num_threads(threads);
}

TEST_CASE("whatever the caller's number of threads is, bits are the same; with another one of the mode they are not") {
  const int threads = at::get_num_threads();
  for (const bool convolves : {false, true}) {
    INFO("with a convolution: ", convolves);
    const auto train_with = [&](int callers, int own) {
      Tensors state;
      run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
        at::set_num_threads(callers);
        const Wide model(convolves);
        set_weights(model);
        DistributedDataParallel ddp(model, group, {.lockstep = {.shards = 2, .threads = own}});
        torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        std::vector<double> losses;
        for (int step = 0; step < 2; ++step) {
          losses.push_back(ddp.for_each_shard([&](const Shard& shard) {
            const at::Tensor loss = (ddp(wave({64, 3, 32, 32}, shift_of(shard))) - 1).square().mean();
            loss.backward();
            return loss.item<double>();
          }));
          optimizer.step();
        }
        state = state_of(ddp, losses);
      });
      return state;
    };
    const Tensors expected = train_with(1, 1);
    check_same(train_with(2, 1), expected);
    check_same(train_with(4, 1), expected);
    const Tensors with_two = train_with(1, 2);
    bool all_same = true;
    for (std::size_t i = 0; i < expected.size(); ++i) all_same = all_same && same_bits(expected[i], with_two[i]);
    CHECK_FALSE(all_same);  // or the test says nothing
    check_same(train_with(3, 2), with_two);
  }
  at::set_num_threads(threads);
}

TEST_CASE("training outside of for_each_shard is refused; so is for_each_shard without the mode, or inside itself") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Mlp model;
    DistributedDataParallel plain(Mlp(), group);
    CHECK(contains(error_of([&] { plain.for_each_shard([](const Shard&) { return 0.0; }); }).what(),
                   "lockstep mode is off; set .lockstep"));
    DistributedDataParallel ddp(model, group, kLockstep);
    CHECK(
        contains(error_of([&] {
                   ddp(wave({6, 20}, 0));
                 }).what(),
                 "lockstep mode: a forward pass in training mode was run outside of for_each_shard(), so its gradients "
                 "would not be averaged"));
    ddp.eval();
    CHECK(ddp(wave({6, 20}, 0)).size(1) == 5);
    ddp.train();
    CHECK(contains(error_of([&] {
                     ddp.for_each_shard(
                         [&](const Shard&) { return ddp.for_each_shard([](const Shard&) { return 0.0; }); });
                   }).what(),
                   "of this wrapper or another one"));
    DistributedDataParallel other(Mlp(), group, kLockstep);
    CHECK(contains(error_of([&] {
                     ddp.for_each_shard(
                         [&](const Shard&) { return other.for_each_shard([](const Shard&) { return 0.0; }); });
                   }).what(),
                   "of this wrapper or another one"));
  });
}

struct QueueImpl : torch::nn::Module {
  QueueImpl() {
    weight = register_parameter("weight", at::ones({3}));
    queue = register_buffer("queue", at::zeros({2}));
  }
  at::Tensor forward(const at::Tensor& x) {
    queue.set_data(at::zeros({queue.numel() + 50'000}));
    return (x * weight).sum();
  }
  at::Tensor weight, queue;
};
TORCH_MODULE(Queue);

TEST_CASE("a buffer that grows in a shard is refused by name, and is what it was before") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    Queue model;
    DistributedDataParallel ddp(model, group, kLockstep);
    CHECK(
        contains(error_of([&] {
                   ddp.for_each_shard([&](const Shard&) {
                     ddp(at::ones({3})).backward();
                     return 0.0;
                   });
                 }).what(),
                 "a shard changed the shape, layout or dtype of buffer queue: it is Float [50002] and was Float [2]"));
    CHECK(model->queue.numel() == 2);
  });
}

TEST_CASE("a state of other shards or another seed is refused, and ranks at different steps are told") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    DistributedDataParallel ddp(Mlp(), group, kLockstep);
    CHECK(std::string(
              error_of([&] { ddp.load_lockstep_state({.step = 3, .shards = 4, .seed = 7, .threads = 1}); }).what()) ==
          "lockstep mode: the state is of a run with 4 shards and seed 7, but this one has 8 shards and seed 7; use "
          "the same values");
    LockstepState state = ddp.lockstep_state();
    state.step = 12;
    state.threads += 1;  // which is only warned of, and so are these
    state.arithmetic += "another fact: 1\n";
    const std::string changed = standard_error_of([&] { ddp.load_lockstep_state(state); });
    CHECK(changed ==
          "[lockstep] warning: lockstep mode: the resumed run will not be bitwise equal to an uninterrupted one. "
          "Changes: threads of a shard: 2, now 1; another fact: 1, now nothing\n");
    const std::string unknown =
        standard_error_of([&] { ddp.load_lockstep_state({.step = 12, .shards = 8, .seed = 7}); });
    CHECK(unknown ==
          "[lockstep] warning: lockstep mode: the state does not record the number of threads and the kernels and "
          "settings of the run so far, so it is not known whether the resumed run is bitwise equal to an uninterrupted "
          "one\n");
    const LockstepState same = ddp.lockstep_state();
    CHECK(standard_error_of([&] { ddp.load_lockstep_state(same); }).empty());
    CHECK(ddp.lockstep_state().step == 12);
    CHECK(ddp.lockstep_state().threads == 1);
    CHECK(ddp.lockstep_state().arithmetic == text_of(arithmetic_here(1)));
  });
  const auto errors = run_group(2, Over::arena, [](const ProcessGroup& group) {
    DistributedDataParallel ddp(Mlp(), group, kLockstep);
    LockstepState state = ddp.lockstep_state();
    state.step = static_cast<std::uint64_t>(group.rank()) * 5;
    ddp.load_lockstep_state(state);
    ddp.for_each_shard([](const Shard&) { return 0.0; });
  });
  for (const auto& error : errors) {
    CHECK(contains(error_of([&] { std::rethrow_exception(error); }).what(), "rank 0 is at step 0, rank 1 at step 5"));
  }
}

}  // namespace shards_test
