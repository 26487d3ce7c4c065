// Gradients whose memory others hold too: views, aliases, buffers that hooks keep, backwards that were abandoned.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/sole_owner.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/unit/ddp/models.h"

namespace ownership_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

constexpr std::int64_t kWide = 160;  // 100 KiB a matrix: reduced where it lies

// W = a.view() + b.view(): autograd gives both the same memory.
struct SumOfViewsImpl : torch::nn::Module {
  SumOfViewsImpl() {
    a = register_parameter("a", at::zeros({kWide * kWide}));
    b = register_parameter("b", at::zeros({kWide * kWide}));
  }
  at::Tensor forward(const at::Tensor& x) { return x.matmul(a.view({kWide, kWide}) + b.view({kWide, kWide})); }
  at::Tensor a, b;
};
TORCH_MODULE(SumOfViews);

// h + pos.view(h.sizes()): pos shares its gradient's memory with what is computed next.
struct PositionsImpl : torch::nn::Module {
  PositionsImpl() {
    in = register_module("in", torch::nn::Linear(kWide, kWide));
    out = register_module("out", torch::nn::Linear(kWide, kWide));
    positions = register_parameter("positions", at::zeros({kWide * kWide}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = in->forward(x);
    return out->forward(at::tanh(h + positions.view(h.sizes())));
  }
  torch::nn::Linear in = nullptr, out = nullptr;
  at::Tensor positions;
};
TORCH_MODULE(Positions);

struct Throws : torch::autograd::Function<Throws> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, bool throws) {
    context->saved_data["throws"] = throws;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (context->saved_data["throws"].toBool()) throw std::runtime_error("bad batch");
    return {gradients[0], at::Tensor()};
  }
};

// Throws in backward behind its last layer, whose gradient is on its way by then.
struct FragileImpl : torch::nn::Module {
  FragileImpl() {
    first = register_module("first", torch::nn::Linear(kWide, kWide));
    last = register_module("last", torch::nn::Linear(kWide, kWide));
  }
  at::Tensor forward(const at::Tensor& x, bool throws) {
    return last->forward(Throws::apply(at::tanh(first->forward(x)), throws));
  }
  torch::nn::Linear first = nullptr, last = nullptr;
};
TORCH_MODULE(Fragile);

// The mean over ranks of what `model` computes by itself, one tensor a parameter.
template <class Module, class... Args>
std::vector<at::Tensor> averaged_by_hand(Module model, const ProcessGroup& group, const Args&... args) {
  for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
  model->forward(args...).square().mean().backward();
  std::vector<at::Tensor> result;
  for (const auto& parameter : model->parameters()) {
    result.push_back(parameter.grad().clone());
    group.all_reduce(result.back(), ReduceOp::avg);
  }
  return result;
}

const DdpOptions kBucketings[] = {{}, {.bucketing = Bucketing::off}, {.bucket_cap_mb = 0.01}};

template <class Module>
void check_training(int ranks, Over transport, const DdpOptions& options) {
  run_group_or_throw(ranks, transport, [&](const ProcessGroup& group) {
    Module model, alone;
    set_weights(model, 1);
    set_weights(alone, 1);
    DistributedDataParallel ddp(model, group, options);
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = wave({kWide, kWide}, 10 * step + group.rank());
      const auto expected = averaged_by_hand(alone, group, x);
      if (step != 2) ddp.zero_grad();
      const auto before = model->parameters();
      const std::vector<at::Tensor> kept = step == 2 ? gradients_of(before) : std::vector<at::Tensor>();
      ddp(x).square().mean().backward();
      const auto found = gradients_of(ddp.parameters());
      for (std::size_t i = 0; i < found.size(); ++i) {
        CAPTURE(step);
        CAPTURE(i);
        const at::Tensor wanted = step == 2 ? kept[i] + expected[i] : expected[i];
        CHECK(at::allclose(found[i], wanted, 1e-5, 1e-9));
        CHECK(same_on_all_ranks(group, found[i]));
      }
    }
  });
}

}  // namespace

TEST_CASE("parameters whose gradients autograd puts into one place are averaged once each") {
  for (const Over transport : kTransports) {
    for (const DdpOptions& options : kBucketings) {
      for (const int ranks : {2, 3}) {
        check_training<SumOfViews>(ranks, transport, options);
        check_training<Positions>(ranks, transport, options);
      }
    }
  }
}

TEST_CASE("gradients that share memory do not after a backward, so that clipping one changes one") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    SumOfViews model;
    set_weights(model, 1);
    DistributedDataParallel ddp(model, group);
    ddp(wave({4, kWide}, group.rank())).sum().backward();
    const at::Tensor before = model->b.grad().clone();
    model->a.grad().mul_(0);
    CHECK(at::equal(model->b.grad(), before));
  });
}

TEST_CASE("gradients that the program keeps in one tensor of its own stay there" * on_host()) {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Fragile model;
    set_weights(model, 1);
    DistributedDataParallel ddp(model, group, {.bucketing = Bucketing::off});
    std::int64_t count = 0;
    for (const auto& parameter : ddp.parameters()) count += parameter.numel();
    const at::Tensor flat = group.empty({count});
    for (int step = 0; step < 2; ++step) {
      flat.zero_();
      std::int64_t begin = 0;
      for (auto& parameter : ddp.parameters()) {
        parameter.mutable_grad() = flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
        begin += parameter.numel();
      }
      const at::Tensor x = wave({4, kWide}, group.rank() + step);
      ddp(x, false).square().mean().backward();
      const at::Tensor found = flat.clone();
      std::vector<at::Tensor> expected;
      for (const at::Tensor& one : averaged_by_hand(Fragile(model), group, x, false))
        expected.push_back(one.view({-1}));
      CHECK(at::allclose(found, at::cat(expected), 1e-5, 1e-9));
    }
  });
}

TEST_CASE("parameters may be given other strides between backwards") {
  // One tensor a rank: its gradient may be reduced where it lies, and the other's is copied.
  struct ExpertsImpl : torch::nn::Module {
    ExpertsImpl() {
      for (const char* name : {"a", "b"}) experts.push_back(register_parameter(name, here(at::zeros({64, 32, 3, 3}))));
    }
    at::Tensor forward(const at::Tensor& x, std::size_t expert) { return (experts[expert] * x).sum(); }
    std::vector<at::Tensor> experts;
  };
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto model = std::make_shared<ExpertsImpl>();
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    for (int step = 0; step < 6; ++step) {
      if (step == 3) {
        for (const at::Tensor& expert : model->parameters()) {
          expert.set_data(expert.contiguous(at::MemoryFormat::ChannelsLast));
        }
      }
      ddp.zero_grad();
      ddp(wave({64, 32, 3, 3}, group.rank()), static_cast<std::size_t>(group.rank())).backward();
      for (int rank = 0; rank < 2; ++rank) {
        const at::Tensor gradient = model->parameters()[static_cast<std::size_t>(rank)].grad();
        CHECK(at::equal(gradient, wave({64, 32, 3, 3}, rank) / 2));
      }
    }
  });
}

TEST_CASE("a buffer that a hook keeps is not used again" * on_host()) {
  using Keep = std::function<at::Tensor(const GradBucket&)>;
  const Keep ways[] = {
      [](const GradBucket& bucket) { return bucket.gradients()[0]; },
      [](const GradBucket& bucket) { return bucket.gradients()[0].detach(); },
      [](const GradBucket& bucket) { return bucket.buffer().detach(); },
      [](const GradBucket& bucket) { return bucket.buffer().data(); },
      [](const GradBucket& bucket) { return bucket.buffer(); },
      [](const GradBucket& bucket) {
        return at::from_blob(
            bucket.buffer().data_ptr(), {4}, [storage = bucket.buffer().storage()](void*) {}, at::kFloat);
      },
  };
  for (const Keep& keep : ways) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      Fragile model;
      set_weights(model, 1);
      DistributedDataParallel ddp(model, group);
      at::Tensor kept, copy;
      ddp.register_comm_hook([&](GradBucket& bucket, const ProcessGroup& over) -> BucketResult {
        const at::Tensor buffer = bucket.buffer();
        over.all_reduce(buffer, ReduceOp::avg);
        if (bucket.index() == 0 && !kept.defined()) {
          kept = keep(bucket);
          copy = kept.clone();
        }
        return [buffer] { return buffer; };
      });
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        (ddp(wave({4, kWide}, group.rank() + step), false) * (step + 1)).square().mean().backward();
      }
      CHECK(at::equal(kept, copy));
    });
  }
}

TEST_CASE("a backward that throws on all ranks leaves nothing behind, and the next batch is trained on") {
  for (const Over transport : kTransports) {
    for (const DdpOptions& options : kBucketings) {
      run_group_or_throw(2, transport, [&](const ProcessGroup& group) {
        Fragile model, alone;
        set_weights(model, 1);
        set_weights(alone, 1);
        DistributedDataParallel ddp(model, group, options);
        std::vector<at::Tensor> others;
        for (int step = 0; step < 8; ++step) {
          const at::Tensor x = wave({kWide, kWide}, 10 * step + group.rank());
          const bool throws = step % 3 == 1;
          ddp.zero_grad();
          if (throws) {
            CHECK_THROWS_WITH(ddp(x, true).square().mean().backward(), "bad batch");
            for (auto& parameter : ddp.parameters()) parameter.mutable_grad().reset();
            // Memory that the abandoned gradients may have left goes to somebody else.
            for (int i = 0; i < 4; ++i) others.push_back(group.empty({kWide, kWide}).fill_(7));
            continue;
          }
          const auto expected = averaged_by_hand(alone, group, x, false);
          ddp(x, false).square().mean().backward();
          const auto found = gradients_of(ddp.parameters());
          for (std::size_t i = 0; i < found.size(); ++i) CHECK(at::equal(found[i], expected[i]));
        }
        for (const at::Tensor& other : others) CHECK(other.eq(7).all().item<bool>());
        CHECK(ddp.stats().backwards == 5);
      });
    }
  }
}

// feature: E-10
TEST_CASE("a rank that skips a backward alone is told from the others, with no wrong average") {
  for (const Over transport : kTransports) {
    const auto errors = run_group(2, transport, [&](const ProcessGroup& group) {
      Fragile model;
      set_weights(model, 1);
      DistributedDataParallel ddp(model, group);
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        const bool throws = step == 1 && group.rank() == 0;
        try {
          ddp(wave({4, kWide}, step), throws).square().mean().backward();
        } catch (const std::runtime_error& error) {
          if (std::string(error.what()) != "bad batch") throw;
        }
      }
      group.barrier();  // on a device, errors may come later
    });
    for (const auto& error : errors) {
      REQUIRE(error);
      CHECK_THROWS_AS(std::rethrow_exception(error), Error);
    }
  }
}

TEST_CASE("who owns its memory") {
  const at::Tensor own = at::ones({4});
  CHECK(owns_its_memory(own));
  CHECK(owns_its_memory(at::empty_strided({2, 4}, {1, 2})));
  const at::Tensor view = own.view({2, 2});
  CHECK_FALSE(owns_its_memory(own));
  CHECK(owns_its_memory(own, 2));
  float borrowed[4] = {};
  CHECK_FALSE(owns_its_memory(at::from_blob(borrowed, {4})));
  CHECK_FALSE(owns_its_memory(at::Tensor()));
  const at::Tensor first = at::ones({4}), twin = at::_lazy_clone(first);
  CHECK_FALSE(owns_its_memory(first));
  CHECK_FALSE(owns_its_memory(twin));
}

}  // namespace ownership_test
