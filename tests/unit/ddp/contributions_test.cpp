// What a gradient contains after sequences of events: accumulation, join(), zero_grad(), several backwards of a
// forward.
#include "lockstep/train/ddp/contributions.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/train/ddp/comm_hooks/default_hooks.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/ddp/uneven_inputs/join.h"
#include "tests/support/expect_error.h"
#include "tests/unit/ddp/models.h"

namespace contributions_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

// The gradient of mean(x * w) is the mean of x.
struct ScalarImpl : torch::nn::Module {
  ScalarImpl() {
    w = register_parameter("w", here(at::zeros({1})));
    unused = register_parameter("unused", here(at::zeros({1})));
  }
  at::Tensor forward(const at::Tensor& x, bool also = true) {
    const at::Tensor y = (x * w).mean();
    return also ? y + unused.sum() * 0 : y;
  }
  at::Tensor w, unused;
};
TORCH_MODULE(Scalar);

using Ddp = DistributedDataParallel<Scalar>;

at::Tensor batch(double value, std::int64_t samples = 4) { return here(at::full({samples}, value)); }
double gradient(const Scalar& model) { return model->w.grad().item<double>(); }

void locally(Ddp& ddp, const std::function<void()>& step) {
  const auto guard = ddp.no_sync();
  step();
}

// By both ways of counting, over memory and links.
void with_both(const std::function<void(const ProcessGroup&, Scalar&, Ddp&, Weighting)>& body,
               DdpOptions options = {}) {
  for (const Over transport : kTransports) {
    for (const Weighting weighting : {Weighting::ranks, Weighting::samples}) {
      options.weighting = weighting;
      run_group_or_throw(2, transport, [&](const ProcessGroup& group) {
        Scalar model;
        Ddp ddp(model, group, options);
        body(group, model, ddp, weighting);
      });
    }
  }
}

}  // namespace

TEST_CASE("what a rank has accumulated before it joined counts, and what it computes afterwards does not") {
  with_both([](const ProcessGroup& group, Scalar& model, Ddp& ddp, Weighting weighting) {
    const std::vector<at::Tensor> batches(group.rank() == 0 ? 3 : 4, batch(1));
    int step = 0;
    join(group, batches, [&](const at::Tensor& x) {
      if (step++ % 2 == 0) {
        ddp.zero_grad();
        locally(ddp, [&] { ddp(x).backward(); });
        return;
      }
      ddp(x).backward();
      // Ranks: (1 + 1 + 1 + 1) / 2, then (1 + 1 + 1) / 2.
      const double expected = weighting == Weighting::samples ? 1 : step == 2 ? 2 : 1.5;
      CHECK(gradient(model) == doctest::Approx(expected));
    });
    CHECK(step == 4);
  });
}

TEST_CASE("an average that was not zeroed stays whole when a rank joins") {
  with_both([](const ProcessGroup& group, Scalar& model, Ddp& ddp, Weighting weighting) {
    const std::vector<at::Tensor> batches(group.rank() == 0 ? 1 : 2, batch(1));
    double expected = 0;
    join(group, batches, [&](const at::Tensor& x) {
      ddp(x).backward();
      expected += expected == 0 || weighting == Weighting::samples ? 1 : 0.5;
      CHECK(gradient(model) == doctest::Approx(expected));
    });
    CHECK(expected > 1);
  });
}

TEST_CASE("what was accumulated on top of an average is refused by name in a join that divides by active ranks" *
          on_host()) {
  for (const bool zeroes : {true, false}) {
    const auto errors = run_group(2, Over::arena, [&](const ProcessGroup& group) {
      Scalar model;
      Ddp ddp(model, group);
      ddp(batch(1)).backward();
      if (zeroes) ddp.zero_grad();
      locally(ddp, [&] {
        if (group.rank() == 0) ddp(batch(1)).backward();
      });
      join(group, std::vector<at::Tensor>(1, batch(3)), [&](const at::Tensor& x) { ddp(x).backward(); },
           {.divide_by_initial_world_size = false});
      CHECK(gradient(model) == doctest::Approx((1 + 3 + 3) / 2.0));
    });
    for (const auto& error : errors) {
      REQUIRE((error != nullptr) == !zeroes);
      if (zeroes) continue;
      const std::string text = error_of([&] { std::rethrow_exception(error); }).what();
      CHECK(contains(text, "the gradient of w on rank 0 holds an average plus gradients that this rank added to it"));
    }
  }
}

TEST_CASE("a joined rank keeps its gradient of a parameter that no rank uses") {
  for (const bool skips : {false, true}) {
    with_both(
        [](const ProcessGroup& group, Scalar& model, Ddp& ddp, Weighting) {
          // Rank 0's last batch uses both parameters, and it repeats that.
          const std::vector<int> batches = group.rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 0, 0};
          int step = 0;
          join(group, batches, [&](int also) {
            ddp.zero_grad();
            ddp(batch(group.rank() + 1), also != 0).backward();
            CHECK(model->unused.grad().defined() == (step == 1));
            ++step;
          });
        },
        {.find_unused_parameters = true, .skip_all_reduce_unused_params = skips});
  }
}

TEST_CASE("a backward whose gradients were dropped counts for nothing, on one rank or on all") {
  with_both([](const ProcessGroup& group, Scalar& model, Ddp& ddp, Weighting) {
    for (const bool to_none : {true, false}) {
      for (const bool on_all : {true, false}) {
        locally(ddp, [&] {
          if (on_all || group.rank() == 0) ddp(batch(100)).backward();
        });
        model->zero_grad(to_none);
        ddp(batch(1)).backward();
        CHECK(gradient(model) == doctest::Approx(1));
        model->zero_grad(to_none);
      }
    }
  });
}

TEST_CASE("a gradient that is replaced by zeros counts for nothing") {
  with_both([](const ProcessGroup&, Scalar& model, Ddp& ddp, Weighting) {
    locally(ddp, [&] { ddp(batch(7, 12)).backward(); });
    for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = at::zeros_like(parameter);
    ddp(batch(2)).backward();
    CHECK(gradient(model) == doctest::Approx(2));
  });
}

TEST_CASE("a rank that has joined contributes nothing in a join within the step") {
  with_both([](const ProcessGroup& group, Scalar& model, Ddp& ddp, Weighting weighting) {
    const std::vector<at::Tensor> batches(group.rank() == 0 ? 1 : 2, batch(4));
    join(group, batches, [&](const at::Tensor& x) {
      join(group, std::vector<at::Tensor>{x}, [&](const at::Tensor& part) {
        ddp.zero_grad();
        ddp(part).backward();
      });
    });
    CHECK(gradient(model) == doctest::Approx(weighting == Weighting::samples ? 4 : 2));
  });
}

TEST_CASE("with weights, an average that was dropped with what came after it does not come back") {
  with_both([](const ProcessGroup&, Scalar& model, Ddp& ddp, Weighting) {
    ddp(batch(1)).backward();
    locally(ddp, [&] { ddp(batch(10)).backward(); });
    ddp.zero_grad();
    ddp(batch(1)).backward();
    CHECK(gradient(model) == doctest::Approx(1));
    ddp(batch(3)).backward();
    CHECK(gradient(model) == doctest::Approx(4));
  });
}

TEST_CASE("gradients of which some are dropped in mid-accumulation have weights of their own") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    struct TwoImpl : torch::nn::Module {
      TwoImpl() : a(register_parameter("a", here(at::zeros({1})))), b(register_parameter("b", here(at::zeros({1})))) {}
      at::Tensor forward(const at::Tensor& x) { return (x * a).mean() + (x * b).mean(); }
      at::Tensor a, b;
    };
    const auto model = std::make_shared<TwoImpl>();
    DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
    {
      const auto guard = ddp.no_sync();
      ddp(batch(9)).backward();
    }
    model->a.mutable_grad().reset();
    ddp(batch(1)).backward();
    CHECK(model->a.grad().item<double>() == doctest::Approx(1));
    CHECK(model->b.grad().item<double>() == doctest::Approx(5));
  });
}

TEST_CASE("each parameter is divided by the weights of what its own gradients hold, which differ between ranks") {
  struct TwoImpl : torch::nn::Module {
    TwoImpl() : a(register_parameter("a", here(at::zeros({1})))), b(register_parameter("b", here(at::zeros({1})))) {}
    at::Tensor forward(const at::Tensor& x) { return (x * a).mean() + (x * b).mean(); }
    at::Tensor a, b;
  };
  for (const int ranks : {1, 3}) {
    for (const Over transport : kTransports) {
      run_group_or_throw(ranks, transport, [](const ProcessGroup& group) {
        const auto model = std::make_shared<TwoImpl>();
        DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
        // In the middle of an accumulation only the last rank drops its gradient of a.
        const auto value = [](int rank, int part) { return 1.0 + rank + 10 * part; };
        const auto samples = [](int rank, int part) { return 2 + 3 * rank + part; };
        const int last = group.size() - 1;
        for (int step = 0; step < 2; ++step) {
          ddp.zero_grad();
          {
            const auto guard = ddp.no_sync();
            ddp(batch(value(group.rank(), 0), samples(group.rank(), 0))).backward();
          }
          if (group.rank() == last) model->a.mutable_grad().reset();
          ddp(batch(value(group.rank(), 1), samples(group.rank(), 1))).backward();
          double sum_a = 0, sum_b = 0, weight_a = 0, weight_b = 0;
          for (int rank = 0; rank <= last; ++rank) {
            for (int part = 0; part < 2; ++part) {
              const double weight = samples(rank, part);
              sum_b += weight * value(rank, part);
              weight_b += weight;
              if (rank == last && part == 0) continue;
              sum_a += weight * value(rank, part);
              weight_a += weight;
            }
          }
          CHECK(model->a.grad().item<double>() == doctest::Approx(sum_a / weight_a));
          CHECK(model->b.grad().item<double>() == doctest::Approx(sum_b / weight_b));
        }
      });
    }
  }
}

TEST_CASE("two losses of one forward, one after the other, are as their sum") {
  with_both([](const ProcessGroup&, Scalar& model, Ddp& ddp, Weighting weighting) {
    locally(ddp, [&] {
      const at::Tensor y = ddp(batch(1));
      (y * 1).backward({}, /*retain_graph=*/true);
      (y * 2).backward();
    });
    const at::Tensor y = ddp(batch(1));
    (y * 1 + y * 2).backward();
    CHECK(gradient(model) == doctest::Approx(weighting == Weighting::samples ? 3 : 6));
  });
}

TEST_CASE("samples are those of a list of tensors, and arguments that tell of none are refused" * on_host()) {
  struct ListImpl : torch::nn::Module {
    ListImpl() : w(register_parameter("w", at::zeros({1}))) {}
    at::Tensor forward(const std::vector<at::Tensor>& x) { return (x.front() * w).mean(); }
    at::Tensor forward(const std::pair<int, int>& x) { return w.sum() * x.first; }
    at::Tensor w;
  };
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto model = std::make_shared<ListImpl>();
    DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
    const bool is_first = group.rank() == 0;
    ddp(std::vector<at::Tensor>{at::full({is_first ? 6 : 2}, is_first ? 1.0 : 5.0)}).backward();
    CHECK(model->w.grad().item<double>() == doctest::Approx(2));
    CHECK_ERROR(error_of([&] { ddp(std::pair(1, 2)); }), ErrorKind::invalid_argument, "Call set_weight() before it");
    ddp.set_weight(1);
    ddp.zero_grad();
    ddp(std::pair(1, 2)).backward();
  });
}

// fault: 35
TEST_CASE("what the ranks' sum or a conversion makes infinite is found as their own values are") {
  struct Variant {
    DdpOptions options;
    bool has_hook;
    double value;
  };
  for (const NonFinite then : {NonFinite::skip_step, NonFinite::fail}) {
    const Variant variants[] = {{{.non_finite = then}, true, 1e5},
                                {{.mixed_precision = {.reduce_dtype = at::kHalf}, .non_finite = then}, false, 1e5},
                                {{.non_finite = then}, false, 3e38},
                                {{.weighting = Weighting::samples, .non_finite = then}, false, 3e38}};
    for (const Variant& variant : variants) {
      run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
        Scalar model;
        Ddp ddp(model, group, variant.options);
        if (variant.has_hook) ddp.register_comm_hook(fp16_compress_hook(all_reduce_hook()));
        const auto backward = [&] { ddp(batch(variant.value)).backward(); };
        if (then == NonFinite::fail) {
          CHECK_ERROR(error_of(backward), ErrorKind::corrupt_data, "NaN or Inf in the averaged gradient of w");
        } else {
          backward();
        }
        CHECK_FALSE(model->w.grad().defined());
        CHECK(ddp.stats().skipped_steps == 1);
        ddp(batch(1)).backward();
        CHECK(gradient(model) == doctest::Approx(1));
      });
    }
  }
}

TEST_CASE("a parameter that is registered or replaced after wrapping is refused by name on all ranks" * on_host()) {
  struct GrowingImpl : torch::nn::Module {
    GrowingImpl() { layer = register_module("layer", torch::nn::Linear(4, 4)); }
    at::Tensor forward(const at::Tensor& x) { return more.is_empty() ? layer->forward(x) : more->forward(x); }
    torch::nn::Linear layer = nullptr, more = nullptr;
  };
  for (const bool replaces : {false, true}) {
    for (const int shards : {0, 2}) {
      const auto errors = run_group(2, Over::arena, [&](const ProcessGroup& group) {
        const auto model = std::make_shared<GrowingImpl>();
        DistributedDataParallel ddp(model, group,
                                    {.find_unused_parameters = shards == 0, .lockstep = {.shards = shards}});
        const auto step = [&] {
          const auto backward = [&](const Shard&) {
            ddp(wave({2, 4}, 0)).sum().backward();
            return 0.0;
          };
          shards == 0 ? backward({}) : ddp.for_each_shard(backward);
        };
        step();
        const torch::nn::Linear made(4, 4);
        model->more = replaces ? model->replace_module("layer", made) : model->register_module("more", made);
        step();
      });
      for (const auto& error : errors) {
        REQUIRE(error != nullptr);
        const std::string text = error_of([&] { std::rethrow_exception(error); }).what();
        const char* name = replaces ? "parameter layer.weight was registered" : "parameter more.weight was registered";
        CHECK(text.find(name) != std::string::npos);
      }
    }
  }
}

TEST_CASE("a parameter that is resized behind the wrapper is refused by name on all ranks" * on_host()) {
  const auto errors = run_group(2, Over::arena, [](const ProcessGroup& group) {
    torch::nn::Sequential model(torch::nn::Linear(4, 4));
    DistributedDataParallel ddp(model, group);
    ddp(wave({2, 4}, 0)).sum().backward();
    ddp.zero_grad();
    model[0]->as<torch::nn::Linear>()->weight.set_data(wave({6, 4}, 0));
    ddp(wave({2, 4}, 0));
  });
  for (const auto& error : errors) {
    REQUIRE(error != nullptr);
    const std::string text = error_of([&] { std::rethrow_exception(error); }).what();
    CHECK(text.find("parameter 0.weight had shape [4, 4]") != std::string::npos);
    CHECK(text.find("and has [6, 4] now") != std::string::npos);
  }
}

TEST_CASE("in lockstep mode a backward through an evaluation's forward is refused" * on_host()) {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    torch::nn::Sequential model(torch::nn::Linear(4, 4));
    DistributedDataParallel ddp(model, group, {.lockstep = {.shards = 2}});
    model->eval();
    const at::Tensor x = wave({2, 4}, 0).requires_grad_();
    const at::Tensor y = ddp(x).sum();
    CHECK(torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true).front().defined());
    CHECK_ERROR(error_of([&] { y.backward(); }), ErrorKind::invalid_argument, "outside of for_each_shard()");
    CHECK_FALSE(model->parameters().front().grad().defined());
  });
}

TEST_CASE("buffers follow a rank that still has batches, and a part of the model that trains" * on_host()) {
  struct NormImpl : torch::nn::Module {
    NormImpl() {
      norm = register_module("norm", torch::nn::BatchNorm1d(4));
      layer = register_module("layer", torch::nn::Linear(4, 2));
    }
    at::Tensor forward(const at::Tensor& x) { return layer->forward(norm->forward(x)); }
    torch::nn::BatchNorm1d norm = nullptr;
    torch::nn::Linear layer = nullptr;
  };
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto model = std::make_shared<NormImpl>();
    DistributedDataParallel ddp(model, group);
    const std::vector<at::Tensor> batches(group.rank() == 0 ? 1 : 60, wave({8, 4}, group.rank()) + 10 * group.rank());
    join(group, batches, [&](const at::Tensor& x) {
      ddp.zero_grad();
      ddp(x).square().mean().backward();
    });
    ddp.sync_buffers();
    CHECK(model->norm->running_mean.mean().item<double>() > 9);

    model->eval();
    model->norm->train();
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      ddp(wave({8, 4}, 3 * group.rank() + step)).sum().backward();
    }
    model->eval();
    (void)ddp(wave({8, 4}, 0));
    CHECK(same_on_all_ranks(group, model->norm->running_mean));
  });
}

}  // namespace contributions_test
