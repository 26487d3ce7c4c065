// SyncBatchNormTag batch norm in lockstep mode.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/backward_in_parts.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/nn/convert_sync_batchnorm.h"
#include "lockstep/train/nn/sync_batch_norm.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"
#include "tests/support/recomputed.h"
#include "tests/unit/ddp/shard_worlds.h"

namespace shards_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

// All kinds of batch norm: our own, converted, converted without running statistics, and one that is a shard's.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(const ProcessGroup& group, double dropout_rate = 0.3) {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).bias(false)));
    own = register_module("own", SyncBatchNorm(8, group));
    dropout = register_module("dropout", torch::nn::Dropout(dropout_rate));
    second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 6, 3).bias(false)));
    converted = register_module("converted", torch::nn::BatchNorm2d(6));
    untracked =
        register_module("untracked", torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(6).track_running_stats(false)));
    last = register_module("last", torch::nn::Linear(6, 5));
    convert_sync_batchnorm(converted, group);
    convert_sync_batchnorm(untracked, group);
    local = register_module("local", torch::nn::BatchNorm2d(8));
  }
  at::Tensor forward(at::Tensor x, bool with_local = true) {
    x = dropout->forward(at::relu(own->forward(first->forward(x))));
    if (with_local) x = x + local->forward(x);
    x = at::relu(converted->forward(second->forward(x))).mean({2, 3});
    return last->forward(dropout->forward(untracked->forward(x)));
  }
  torch::nn::Conv2d first = nullptr, second = nullptr;
  SyncBatchNorm own = nullptr;
  torch::nn::BatchNorm2d converted = nullptr, local = nullptr;
  torch::nn::BatchNorm1d untracked = nullptr;
  torch::nn::Dropout dropout = nullptr;
  torch::nn::Linear last = nullptr;
};
TORCH_MODULE(Net);

struct PlainImpl : torch::nn::Module {
  PlainImpl() {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).bias(false)));
    own = register_module("own", torch::nn::BatchNorm2d(8));
    second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 6, 3).bias(false)));
    converted = register_module("converted", torch::nn::BatchNorm2d(6));
    untracked =
        register_module("untracked", torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(6).track_running_stats(false)));
    last = register_module("last", torch::nn::Linear(6, 5));
  }
  at::Tensor forward(at::Tensor x) {
    x = at::relu(own->forward(first->forward(x)));
    x = at::relu(converted->forward(second->forward(x))).mean({2, 3});
    return last->forward(untracked->forward(x));
  }
  torch::nn::Conv2d first = nullptr, second = nullptr;
  torch::nn::BatchNorm2d own = nullptr, converted = nullptr;
  torch::nn::BatchNorm1d untracked = nullptr;
  torch::nn::Linear last = nullptr;
};
TORCH_MODULE(Plain);

// Two layers, which a test may visit as it likes.
struct TwoImpl : torch::nn::Module {
  explicit TwoImpl(const ProcessGroup& group) {
    one = register_module("one", SyncBatchNorm(3, group));
    two = register_module("two", SyncBatchNorm(3, group));
  }
  at::Tensor forward(const at::Tensor& x) { return two->forward(one->forward(x)); }
  SyncBatchNorm one = nullptr, two = nullptr;
};
TORCH_MODULE(Two);

at::Tensor images(const Shard& shard) { return wave({4, 3, 8, 8}, shift_of(shard)); }

double train_on(DistributedDataParallel<Net>& ddp, const Shard& shard) {
  const at::Tensor loss = (ddp(images(shard)) - 1).square().mean();
  loss.backward();
  return loss.item<double>();
}

// What each rank throws when nobody but the exchange ends the others' waiting.
std::vector<std::exception_ptr> failures(int ranks, Over transport,
                                         const std::function<void(const ProcessGroup&)>& body) {
  const auto groups = local_groups(ranks, transport, {.timeout = std::chrono::seconds(30)});
  return run_ranks(ranks, [&](int rank) { body(groups[static_cast<std::size_t>(rank)]); });
}

Error as_error(const std::exception_ptr& failure) {
  return error_of([&] { std::rethrow_exception(failure); });
}

}  // namespace

TEST_CASE("a model with synchronised batch norms has the same bits on any number of ranks") {
  check_any_world([](const ProcessGroup& group) {
    const Net model(group);
    const Tensors state = train<Net>(
        group, [](auto& ddp, const Shard& shard) { return (ddp(images(shard)) - 1).square().mean(); }, 3, 1, model);
    CHECK(model->own->num_batches_tracked.item<std::int64_t>() == 3);
    CHECK(model->converted->num_batches_tracked.item<std::int64_t>() == 3);
    CHECK(model->local->num_batches_tracked.item<std::int64_t>() == 3);
    CHECK(model->local->running_mean.abs().sum().item<float>() > 0);
    return state;
  });
}

TEST_CASE("so it has with gradient accumulation") {
  check_any_world([](const ProcessGroup& group) {
    return train<Net>(
        group, [](auto& ddp, const Shard& shard) { return (ddp(images(shard)) - 1).square().mean(); }, 2, 2,
        Net(group));
  });
}

TEST_CASE("so it has with batches that are computed in parts, though the guards of no_sync() interleave") {
  check_any_world([](const ProcessGroup& group) {
    const Net model(group);
    set_weights(model);
    DistributedDataParallel ddp(model, group, kLockstep);
    std::vector<double> losses;
    for (int step = 0; step < 2; ++step) {
      losses.push_back(ddp.for_each_shard([&](const Shard& shard) {
        return backward_in_parts(ddp, images(shard), at::ones({4, 5}), 2,
                                 [](const at::Tensor& y, const at::Tensor& one) { return (y - one).square().mean(); });
      }));
    }
    return state_of(ddp, losses);
  });
}

TEST_CASE("a step is one of plain batch norm over the batches of all shards") {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const double tolerance = type == at::kFloat ? 1e-6 : 1e-13;
    Plain plain;
    plain->to(type);
    set_weights(plain);
    Tensors all;
    for (int shard = 0; shard < kShards; ++shard) all.push_back(images({.index = shard}).to(type));
    const at::Tensor expected = (plain->forward(at::cat(all)) - 1).square().mean();
    expected.backward();
    for (const int ranks : {1, 4}) {
      run_group_or_throw(ranks, Over::arena, [&](const ProcessGroup& group) {
        Net model(group, 0);
        model->to(type);
        set_weights(model);
        DistributedDataParallel ddp(model, group, kLockstep);
        const double loss = ddp.for_each_shard([&](const Shard& shard) {
          const at::Tensor own = (ddp(images(shard).to(type), false) - 1).square().mean();
          own.backward();
          return own.item<double>();
        });
        CHECK(std::abs(loss - expected.item<double>()) < tolerance);
        const auto expected_parameters = plain->named_parameters();
        for (const auto& item : expected_parameters) {
          INFO(item.key());
          const at::Tensor found = model->named_parameters()[item.key()].grad();
          CHECK((found - item.value().grad()).abs().max().item<double>() < tolerance);
        }
        for (const auto& item : plain->named_buffers()) {
          INFO(item.key());
          const at::Tensor found = model->named_buffers()[item.key()];
          CHECK((found - item.value()).abs().max().item<double>() < tolerance);
        }
      });
    }
  }
}

TEST_CASE("one shard runs at a time, in their order, with the caller's settings and its own random numbers") {
  const int threads = at::get_num_threads();
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    at::set_num_threads(3);
    Two model(group);
    DistributedDataParallel ddp(model, group, {.lockstep = {.shards = 4, .seed = 7, .threads = 2}});
    std::vector<double> drawn;
    const auto draw = [&] { return at::rand({}, at::kDouble).item<double>(); };
    std::string order;
    const at::NoGradGuard no_grad;
    at::manual_seed(5);
    const double next = draw();
    at::manual_seed(5);
    at::globalContext().setFlushDenormal(true);
    ddp.for_each_shard([&](const Shard& shard) {
      const auto note = [&](char place) { order += place + std::to_string(shard.index) + " "; };
      note('a');
      drawn.push_back(draw());
      model->one->forward(wave({2, 3}, shard.index));
      note('b');
      drawn.push_back(draw());
      model->two->forward(wave({2, 3}, shard.index));
      note('c');
      CHECK_FALSE(at::GradMode::is_enabled());
      CHECK(at::get_num_threads() == 2);
      CHECK((at::full({1}, 1e-39F) + 0).item<float>() == 0);
      return 0.0;
    });
    at::globalContext().setFlushDenormal(false);
    CHECK(at::get_num_threads() == 3);
    CHECK(order == "a0 a1 a2 a3 b0 b1 b2 b3 c0 c1 c2 c3 ");
    CHECK(draw() == next);

    model->eval();
    std::vector<double> without;
    ddp.for_each_shard([&](const Shard&) {
      without.push_back(draw());
      without.push_back(draw());
      return 0.0;
    });
    CHECK(without.size() == 8);
    DistributedDataParallel again(torch::nn::Linear(1, 1), group, {.lockstep = {.shards = 4, .seed = 7}});
    without.clear();
    again.for_each_shard([&](const Shard&) {
      without.push_back(draw());
      without.push_back(draw());
      return 0.0;
    });
    CHECK(drawn ==
          std::vector{without[0], without[2], without[4], without[6], without[1], without[3], without[5], without[7]});
  });
  at::set_num_threads(threads);
}

namespace {

struct CheckpointedImpl : torch::nn::Module {
  explicit CheckpointedImpl(const ProcessGroup& group, bool recomputes_it) : recomputes(recomputes_it) {
    linear = register_module("linear", torch::nn::Linear(4, 3));
    part = register_module("part", Two(group));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = linear->forward(x);
    return recomputes ? recomputed(hidden, part) : part->forward(hidden);
  }
  const bool recomputes;
  torch::nn::Linear linear = nullptr;
  Two part = nullptr;
};
TORCH_MODULE(Checkpointed);

}  // namespace

TEST_CASE("layers may be computed anew in backward") {
  const auto gradients = [](const ProcessGroup& group, bool recomputes) {
    Checkpointed model(group, recomputes);
    set_weights(model);
    DistributedDataParallel ddp(model, group, kLockstep);
    ddp.for_each_shard([&](const Shard& shard) {
      (ddp(wave({3, 4}, shard.index)) * wave({3, 3}, shard.index + 50)).sum().backward();
      return 0.0;
    });
    Tensors found;
    for (const auto& parameter : model->parameters()) found.push_back(parameter.grad());
    return found;
  };
  Tensors expected;
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) { expected = gradients(group, false); });
  for (const int ranks : {1, 2}) {
    run_group_or_throw(ranks, Over::arena,
                       [&](const ProcessGroup& group) { check_same(gradients(group, true), expected); });
  }
}

TEST_CASE("a callback that throws ends the step on all ranks with its text") {
  for (const Over transport : {Over::arena, Over::links}) {
    for (const char* when : {"before", "between", "after"}) {
      INFO(when);
      const auto thrown = failures(2, transport, [&](const ProcessGroup& group) {
        Net model(group);
        DistributedDataParallel ddp(model, group, kLockstep);
        ddp.for_each_shard([&](const Shard& shard) {
          const auto boom = [&](const char* now) {
            if (shard.index == 5 && std::string(now) == when) throw std::runtime_error("boom");
          };
          boom("before");
          const at::Tensor output = ddp(images(shard));
          boom("between");
          output.square().sum().backward();
          boom("after");
          return 0.0;
        });
      });
      CHECK_ERROR(as_error(thrown[0]), ErrorKind::aborted, "lockstep mode: shard 5 on rank 1 failed: boom");
      CHECK_THROWS_WITH(std::rethrow_exception(thrown[1]), "boom");
    }
  }
}

TEST_CASE("a rank that is alone may do a failed step again") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    const auto run = [&](bool fails) {
      Net model(group);
      set_weights(model);
      DistributedDataParallel ddp(model, group, kLockstep);
      const auto failing = [&](const Shard& shard) {
        train_on(ddp, shard);
        if (shard.index == 2) throw std::runtime_error("boom");
        return 0.0;
      };
      if (fails) {
        CHECK_THROWS_WITH(ddp.for_each_shard(failing), "boom");
        CHECK_FALSE(model->last->weight.grad().defined());
        CHECK(model->own->num_batches_tracked.item<std::int64_t>() == 0);
        CHECK(model->own->running_mean.abs().sum().item<float>() == 0);
        // What the layer itself refuses does not end the group either.
        CHECK_ERROR(error_of([&] {
                      ddp.for_each_shard([&](const Shard& shard) {
                        model->own->forward(at::ones({2, shard.index == 3 ? 7 : 8}));
                        return 0.0;
                      });
                    }),
                    ErrorKind::invalid_argument, "so 7 channels, but the module has 8");
        CHECK_ERROR(error_of([&] {
                      ddp.for_each_shard([&](const Shard& shard) {
                        model->own->forward(at::ones({shard.index == 3 ? 1 : 0, 8}));
                        return 0.0;
                      });
                    }),
                    ErrorKind::invalid_argument, "the batches of all 8 shards together have 1 values a channel");
      }
      const double loss = ddp.for_each_shard([&](const Shard& shard) { return train_on(ddp, shard); });
      return state_of(ddp, {loss});
    };
    check_same(run(true), run(false));
  });
}

TEST_CASE("shards that come to different layers are an error that names them") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    Two model(group);
    DistributedDataParallel ddp(model, group, kLockstep);
    const auto text = [&](const std::function<void(const Shard&, const at::Tensor&)>& body) {
      const Error error = error_of([&] {
        ddp.for_each_shard([&](const Shard& shard) {
          body(shard, wave({2, 3}, shard.index));
          return 0.0;
        });
      });
      CHECK(error.kind() == ErrorKind::desync);
      return std::string(error.what());
    };
    const std::string advice = "; all shards must go through the same synchronised layers in the same order";
    CHECK(text([&](const Shard& shard, const at::Tensor& x) {
            model->one->forward(x);
            if (shard.index != 3) model->two->forward(x);
          }) ==
          "lockstep mode: shard 3 reached the end of its callback, but shard 0 reached SyncBatchNorm statistics of "
          "'two', 7 numbers" +
              advice);
    CHECK(text([&](const Shard& shard, const at::Tensor& x) {
            if (shard.index != 0) model->one->forward(x);
          }) ==
          "lockstep mode: shard 1 reached SyncBatchNorm statistics of 'one', 7 numbers, but shard 0 reached the end "
          "of its callback" +
              advice);
    const std::string swapped = text(
        [&](const Shard& shard, const at::Tensor& x) { (shard.index == 7 ? model->two : model->one)->forward(x); });
    CHECK(contains(swapped, "shard 7 reached SyncBatchNorm statistics of 'two'"));
    const std::string caught = text([&](const Shard& shard, const at::Tensor& x) {
      try {
        if (shard.index < 6) model->one->forward(x);
      } catch (const Error&) {
      }
    });
    CHECK(contains(caught, "shard 6 reached the end of its callback, but shard 0 reached SyncBatchNorm"));
    const std::string in_backward = text([&](const Shard& shard, const at::Tensor& x) {
      const at::Tensor input = x.clone().requires_grad_();
      const at::Tensor output = model->one->forward(input);
      if (shard.index != 2) output.sum().backward();
    });
    CHECK(contains(in_backward, "shard 0 reached SyncBatchNorm gradients of 'one', 6 numbers"));
  });
}

TEST_CASE("so are ranks whose shards do") {
  for (const Over transport : {Over::arena, Over::links}) {
    for (const bool is_shorter : {true, false}) {
      const auto thrown = failures(2, transport, [&](const ProcessGroup& group) {
        Two model(group);
        DistributedDataParallel ddp(model, group, kLockstep);
        ddp.for_each_shard([&](const Shard& shard) {
          const at::Tensor x = wave({2, 3}, shard.index);
          if (shard.index < 4) {
            model->one->forward(x);
          } else if (!is_shorter) {
            model->two->forward(x);
          }
          return 0.0;
        });
      });
      CHECK_ERROR(as_error(thrown[0]), ErrorKind::desync,
                  "lockstep mode: shards 0 to 3 reached SyncBatchNorm statistics of 'one', 7 numbers: ");
      CHECK(as_error(thrown[1]).kind() == ErrorKind::desync);
      if (!is_shorter)
        CHECK(contains(as_error(thrown[1]).what(), "shards 4 to 7 reached SyncBatchNorm statistics of 'two'"));
    }
  }
}

namespace {

struct UnmarkedImpl : torch::nn::Module {
  explicit UnmarkedImpl(ProcessGroup among) : group(std::move(among)) {
    weight = register_parameter("weight", at::ones({3}));
  }
  at::Tensor forward(const at::Tensor& x) { return sync_batch_norm(x, weight, {}, {}, {}, 0.1, 1e-5, group); }
  ProcessGroup group;
  at::Tensor weight;
};
TORCH_MODULE(Unmarked);

struct MarkedImpl : torch::nn::Module, lockstep::SyncBatchNormTag {
  explicit MarkedImpl(ProcessGroup among) : group_(std::move(among)) {
    weight = register_parameter("weight", at::ones({3}));
  }
  at::Tensor forward(const at::Tensor& x) { return sync_batch_norm(x, weight, {}, {}, {}, 0.1, 1e-5, group_, this); }
  const ProcessGroup& group() const override { return group_; }
  at::Tensor weight;

 private:
  const ProcessGroup group_;
};
TORCH_MODULE(Marked);

}  // namespace

TEST_CASE("a module of one's own that calls sync_batch_norm() says so by the mark") {
  check_any_world([](const ProcessGroup& group) {
    return train<Marked>(
        group,
        [](auto& ddp, const Shard& shard) {
          return (ddp(wave({2, 3}, shard.index)) * wave({2, 3}, 5)).sum();
        },
        1, 1, Marked(group));
  });
}

TEST_CASE("what lockstep mode cannot see, or cannot do, is refused") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const ProcessGroup alone = local_groups(1).front();
    CHECK_ERROR(error_of([&] { DistributedDataParallel ddp(Two(alone), group, kLockstep); }),
                ErrorKind::invalid_argument, "lockstep mode: module 'one' is synchronised over 1 of 2 ranks");

    const std::string late = "a synchronised layer was not part of the model when it was wrapped";
    DistributedDataParallel unmarked(Unmarked(group), group, kLockstep);
    CHECK_ERROR(error_of([&] {
                  unmarked.for_each_shard([&](const Shard&) { return unmarked(wave({2, 3}, 0)).sum().item<double>(); });
                }),
                ErrorKind::invalid_argument, late);
    torch::nn::BatchNorm1d norm(3);
    DistributedDataParallel converted(norm, group, kLockstep);
    convert_sync_batchnorm(norm, group);
    CHECK_ERROR(
        error_of([&] {
          converted.for_each_shard([&](const Shard&) { return converted(wave({2, 3}, 0)).sum().item<double>(); });
        }),
        ErrorKind::invalid_argument, late);
    converted.eval();
    CHECK(converted(wave({2, 3}, 0)).size(1) == 3);
  });
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    DistributedDataParallel ddp(Two(group), group, kLockstep);
    at::Tensor output;
    ddp.for_each_shard([&](const Shard& shard) {
      output = ddp(wave({2, 3}, shard.index));
      return 0.0;
    });
    CHECK_ERROR(error_of([&] {
                  (output * wave({2, 3}, 1)).sum().backward();
                }),
                ErrorKind::invalid_argument, "forward and backward must both run in the callback of for_each_shard()");
  });
}

}  // namespace shards_test
