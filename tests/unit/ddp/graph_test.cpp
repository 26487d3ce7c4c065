// Graphs that use parameters in other ways than each of them once: not at all, several times, computed anew.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/support/recomputed.h"
#include "tests/unit/ddp/models.h"

namespace graph_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

at::Tensor mean_over_ranks(const ProcessGroup& group, at::Tensor value) {
  value = value.clone();
  group.all_reduce(value, ReduceOp::avg);
  return value;
}

// One layer, used twice, both times computed anew, behind another one.
struct RecomputingImpl : torch::nn::Module {
  RecomputingImpl() {
    first = register_module("first", torch::nn::Linear(4, 4));
    shared = register_module("shared", torch::nn::Linear(4, 4));
    move_here(*this);
  }
  at::Tensor forward(const at::Tensor& x, int times = 2) {
    at::Tensor y = first->forward(x);
    for (int i = 0; i < times; ++i) y = recomputed(y, shared);
    return y;
  }
  at::Tensor plain(const at::Tensor& x) { return shared->forward(shared->forward(first->forward(x))); }
  torch::nn::Linear first = nullptr, shared = nullptr;
};
TORCH_MODULE(Recomputing);

// Uses its layers in the order in which it has registered them, last one first.
struct BackwardsImpl : torch::nn::Module {
  BackwardsImpl() {
    last = register_module("last", torch::nn::Linear(4, 4));
    middle = register_module("middle", torch::nn::Linear(8, 4));
    first = register_module("first", torch::nn::Linear(4, 8));
    move_here(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return last->forward(middle->forward(first->forward(x))); }
  torch::nn::Linear first = nullptr, middle = nullptr, last = nullptr;
};
TORCH_MODULE(Backwards);

}  // namespace

// feature: E-18
TEST_CASE("find_unused_parameters: unused on some ranks counts as zero, unused on all keeps what it has") {
  for (const Over transport : kTransports) {
    for (const DdpOptions& options :
         {DdpOptions{.find_unused_parameters = true},
          DdpOptions{.bucketing = Bucketing::off, .find_unused_parameters = true},
          DdpOptions{.find_unused_parameters = true, .skip_all_reduce_unused_params = true},
          DdpOptions{
              .bucketing = Bucketing::off, .find_unused_parameters = true, .skip_all_reduce_unused_params = true}}) {
      run_group_or_throw(3, transport, [&](const ProcessGroup& group) {
        Forked model, alone;
        set_weights(model, 1);
        set_weights(alone, 1);
        DistributedDataParallel ddp(model, group, options);
        const at::Tensor x = wave({3, 4}, group.rank());
        // Some: rank 1 uses both heads.
        ddp(x, group.rank() == 1).square().sum().backward();
        alone->forward(x, true).square().sum().backward();
        alone->right->weight.mutable_grad() = here(at::zeros({4, 4}));
        if (group.rank() == 1) {
          alone->zero_grad();
          alone->forward(x, true).square().sum().backward();
        }
        const at::Tensor right = mean_over_ranks(group, alone->right->weight.grad());
        CHECK(at::equal(model->right->weight.grad(), right));
        CHECK(same_on_all_ranks(group, model->left->weight.grad()));
        // All leave it out: the gradient is what it was, or there is none.
        model->right->bias.mutable_grad().reset();
        ddp(x, false).sum().backward();
        CHECK(at::equal(model->right->weight.grad(), right));
        CHECK_FALSE(model->right->bias.grad().defined());
        CHECK(same_on_all_ranks(group, model->left->weight.grad()));
        // And all use it again.
        ddp(x, true).sum().backward();
        CHECK(same_on_all_ranks(group, model->right->bias.grad()));
        CHECK(ddp.stats().backwards == 3);
      });
    }
  }
}

TEST_CASE("a parameter that was used while accumulating counts as used") {
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Forked model;
    set_weights(model, 1);
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    {
      const auto guard = ddp.no_sync();
      ddp(wave({3, 4}, group.rank()), group.rank() == 0).square().sum().backward();
    }
    const at::Tensor mine = group.rank() == 0 ? model->right->weight.grad() : here(at::zeros({4, 4}));
    const at::Tensor expected = mean_over_ranks(group, mine);
    ddp(wave({3, 4}, group.rank()), false).square().sum().backward();
    CHECK(at::equal(model->right->weight.grad(), expected));
  });
}

TEST_CASE("a tensor that is registered twice is one parameter") {
  struct TiedImpl : torch::nn::Module {
    TiedImpl() {
      layer = register_module("layer", torch::nn::Linear(4, 4));
      again = register_parameter("again", layer->weight);
    }
    at::Tensor forward(const at::Tensor& x) { return at::linear(layer->forward(x), again); }
    torch::nn::Linear layer = nullptr;
    at::Tensor again;
  };
  for (const DdpOptions& options : {DdpOptions{}, DdpOptions{.find_unused_parameters = true}}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      const auto model = std::make_shared<TiedImpl>(), alone = std::make_shared<TiedImpl>();
      set_weights(model, 1);
      set_weights(alone, 1);
      DistributedDataParallel ddp(model, group, options);
      const at::Tensor x = wave({3, 4}, group.rank());
      ddp(x).square().sum().backward();
      alone->forward(x).square().sum().backward();
      CHECK(at::allclose(model->layer->weight.grad(), mean_over_ranks(group, alone->layer->weight.grad())));
    });
  }
}

TEST_CASE("an output that does not reach the loss is no obstacle") {
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    struct TwoImpl : torch::nn::Module {
      TwoImpl() {
        a = register_module("a", torch::nn::Linear(4, 4));
        b = register_module("b", torch::nn::Linear(4, 4));
        move_here(*this);
      }
      std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {a->forward(x), b->forward(x)}; }
      torch::nn::Linear a = nullptr, b = nullptr;
    };
    const auto model = std::make_shared<TwoImpl>();
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    const auto [a, b] = ddp(wave({3, 4}, group.rank()));
    (group.rank() == 0 ? a.sum() : a.sum() + b.sum()).backward();
    CHECK(same_on_all_ranks(group, model->a->weight.grad()));
    CHECK(same_on_all_ranks(group, model->b->weight.grad()));
  });
}

TEST_CASE("static_graph learns which parameters a graph uses and how often") {
  for (const Over transport : kTransports) {
    for (const Bucketing bucketing : {Bucketing::on, Bucketing::off}) {
      run_group_or_throw(2, transport, [&](const ProcessGroup& group) {
        Recomputing model, plain;
        set_weights(model, 1);
        set_weights(plain, 1);
        DistributedDataParallel ddp(model, group, {.bucketing = bucketing, .static_graph = true});
        for (int step = 0; step < 3; ++step) {
          const at::Tensor x = wave({3, 4}, 2 * step + group.rank());
          ddp.zero_grad();
          plain->zero_grad();
          ddp(x).square().sum().backward();
          plain->plain(x).square().sum().backward();
          const at::Tensor expected = mean_over_ranks(group, plain->shared->weight.grad());
          CHECK(at::allclose(model->shared->weight.grad(), expected, 1e-6, 1e-7));
          CHECK(same_on_all_ranks(group, model->shared->weight.grad()));
        }
      });
      // Unused parameters, other ones on every rank.
      run_group_or_throw(2, transport, [&](const ProcessGroup& group) {
        Forked model;
        set_weights(model, 1);
        DistributedDataParallel ddp(model, group, {.bucketing = bucketing, .static_graph = true});
        for (int step = 0; step < 3; ++step) {
          ddp.zero_grad();
          ddp(wave({3, 4}, step + group.rank()), group.rank() == 0).sum().backward();
          CHECK(same_on_all_ranks(group, model->right->weight.grad()));
          CHECK(same_on_all_ranks(group, model->left->weight.grad()));
        }
      });
    }
  }
}

TEST_CASE("a static graph that changes is refused on all ranks, by parameter") {
  const auto errors = run_group(2, Over::arena, [&](const ProcessGroup& group) {
    Recomputing model;
    DistributedDataParallel ddp(model, group, {.static_graph = true});
    for (const int times : {2, 3}) ddp(wave({3, 4}, 0), times).sum().backward();
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK_THROWS_WITH_AS(std::rethrow_exception(error), doctest::Contains("got 3 gradients in this backward pass"),
                         Error);
  }
}

TEST_CASE("a second gradient after the reduction has begun is an error, never a wrong result") {
  const auto errors = run_group(2, Over::arena, [&](const ProcessGroup& group) {
    Recomputing model;
    DistributedDataParallel ddp(model, group, {.bucketing = Bucketing::off});
    ddp(wave({3, 4}, 0)).sum().backward();
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK_THROWS_WITH_AS(std::rethrow_exception(error), doctest::Contains("set static_graph"), Error);
  }
}

TEST_CASE("buckets are formed anew in the order in which gradients have come") {
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Backwards model;
    set_weights(model, 1);
    DistributedDataParallel ddp(model, group, {.bucketing = Bucketing::off});
    const auto sizes = [&] { return ddp.logging_data().bucket_sizes; };
    const std::size_t registered = sizes().front();
    CHECK(registered == model->first->bias.nbytes());
    CHECK_FALSE(ddp.logging_data().has_rebuilt_buckets);
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      ddp(wave({3, 4}, group.rank())).sum().backward();
      CHECK(same_on_all_ranks(group, model->middle->weight.grad()));
    }
    CHECK(ddp.logging_data().has_rebuilt_buckets);
    CHECK((sizes().front() == model->last->bias.nbytes() || sizes().front() == model->last->weight.nbytes()));
  });
}

TEST_CASE("delayed parameters are reduced last and together, and averaged like all others") {
  run_group_or_throw(2, Over::links, [&](const ProcessGroup& group) {
    Backwards model;
    DistributedDataParallel ddp(
        model, group, {.bucketing = Bucketing::off, .delay_all_reduce_named_params = {"last.weight", "first.bias"}});
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      ddp(wave({3, 4}, group.rank())).sum().backward();
      for (const auto& parameter : model->parameters()) CHECK(same_on_all_ranks(group, parameter.grad()));
    }
    CHECK(ddp.logging_data().bucket_sizes.back() == model->last->weight.nbytes() + model->first->bias.nbytes());
  });
}

TEST_CASE("retained graphs, several backwards and several forwards of one backward are synchronised") {
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Forked model, alone;
    set_weights(model, 1);
    set_weights(alone, 1);
    DistributedDataParallel ddp(model, group);
    const at::Tensor x = wave({3, 4}, group.rank()), y = wave({3, 4}, group.rank() + 5);
    const at::Tensor loss = ddp(x, true).square().sum();
    loss.backward({}, true);
    loss.backward();
    alone->forward(x, true).square().sum().backward();
    const at::Tensor once = mean_over_ranks(group, alone->left->weight.grad());
    CHECK(at::allclose(model->left->weight.grad(), once * 2));
    ddp.zero_grad();
    alone->zero_grad();
    (ddp(x, true).square().sum() + ddp(y, true).square().sum()).backward();
    (alone->forward(x, true).square().sum() + alone->forward(y, true).square().sum()).backward();
    CHECK(at::allclose(model->left->weight.grad(), mean_over_ranks(group, alone->left->weight.grad())));
  });
}

// feature: E-11
TEST_CASE("modules may take and return what they like") {
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    struct AnyImpl : torch::nn::Module {
      AnyImpl() {
        layer = register_module("layer", torch::nn::Linear(4, 4));
        move_here(*this);
      }
      std::map<std::string, std::optional<at::Tensor>> forward(int times, at::Tensor& changed, std::string name,
                                                               const std::vector<at::Tensor>& xs) {
        changed = changed + 1;
        at::Tensor sum = layer->forward(xs.at(0));
        for (int i = 1; i < times; ++i) sum = sum + layer->forward(xs.at(1));
        return {{std::move(name), sum}, {"nothing", std::nullopt}};
      }
      torch::nn::Linear layer = nullptr;
    };
    const auto model = std::make_shared<AnyImpl>();
    DistributedDataParallel ddp(model, group);
    at::Tensor counter = at::zeros({});
    auto output =
        ddp(3, counter, std::string("sum"), std::vector<at::Tensor>{wave({2, 4}, group.rank()), wave({2, 4}, 3)});
    CHECK(counter.item<float>() == 1);
    output.at("sum")->sum().backward();
    CHECK(same_on_all_ranks(group, model->layer->weight.grad()));
  });
}

TEST_CASE("ignored parameters and buffers are left alone") {
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Net model(16);
    set_weights(model, group.rank());
    model->norm->running_mean.fill_(group.rank());
    DistributedDataParallel ddp(model, group, {.ignored = {"middle.weight", "norm.running_mean"}});
    CHECK_FALSE(same_on_all_ranks(group, model->middle->weight));
    CHECK(same_on_all_ranks(group, model->first->weight));
    ddp.eval();
    ddp(wave({3, 20}, group.rank())).sum().backward();
    CHECK(same_on_all_ranks(group, model->last->weight.grad()));
    CHECK_FALSE(same_on_all_ranks(group, model->middle->weight.grad()));
    CHECK_FALSE(same_on_all_ranks(group, model->norm->running_mean));
  });
}

namespace {

struct SpreadImpl : torch::nn::Module {
  SpreadImpl() {
    register_parameter("here", at::ones({2}));
    register_parameter("there", at::empty({2}, at::device(at::kMeta)));
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TORCH_MODULE(Spread);

}  // namespace

TEST_CASE("options that make no sense are refused" * on_host()) {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    const auto refused = [&](const DdpOptions& options, const char* text) {
      Forked model;
      CHECK_THROWS_WITH_AS(DistributedDataParallel(model, group, options), doctest::Contains(text), Error);
    };
    refused({.bucket_cap_mb = 1, .bucket_cap_mb_list = {1, 2}}, "both set");
    refused({.bucket_cap_mb = -1}, "a bucket cap is -1");
    refused({.skip_all_reduce_unused_params = true}, "needs find_unused_parameters");
    refused({.delay_all_reduce_named_params = {"left.wait"}}, "names left.wait, which the module does not have");
    refused({.ignored = {"lef.weight"}}, "ignored names lef.weight");
    refused({.compare_parameters_every = -3}, "compare_parameters_every is -3");
    refused({.device_ids = {0, 1}}, "device_ids has 2 entries");
    refused({.device_ids = {0}}, "this one lies on the CPU");
    refused({.output_device = 1}, "Leave them unset");
    refused({.mixed_precision = {.param_dtype = at::kInt}}, "names the type Int, which is not a floating-point type");
    struct OddImpl : torch::nn::Module {
      OddImpl(const at::Tensor& parameter, const at::Tensor& buffer) {
        register_parameter("parameter", parameter);
        register_buffer("buffer", buffer);
      }
      at::Tensor forward(const at::Tensor& x) { return x; }
    };
    const auto odd = [&](const at::Tensor& parameter, const at::Tensor& buffer, const char* text) {
      const auto model = std::make_shared<OddImpl>(parameter, buffer);
      CHECK_THROWS_WITH_AS((DistributedDataParallel(model, group)), doctest::Contains(text), Error);
    };
    odd(at::ones({1}).expand({4}), at::ones({1}), "several elements of the parameter parameter share memory");
    odd(at::ones({1}), at::ones({1}).expand({4}), "several elements of the buffer buffer share memory");
    odd(at::ones({1}), at::ones({2, 2}).to_sparse(), "the buffer buffer has the layout Sparse");
    refused({.find_unused_parameters = true, .lockstep = {.shards = 2}},
            "lockstep mode does not work with find_unused_parameters");
    refused({.static_graph = true, .lockstep = {.shards = 2}}, "lockstep mode does not work with static_graph");
    refused({.delay_all_reduce_named_params = {"left.bias"}, .lockstep = {.shards = 2}},
            "lockstep mode does not work with delay_all_reduce_named_params");
    refused({.mixed_precision = {.param_dtype = at::kBFloat16}, .lockstep = {.shards = 2}},
            "lockstep mode does not work with mixed_precision");
    refused({.weighting = Weighting::samples, .lockstep = {.shards = 2}}, "lockstep mode does not work with weighting");
    refused({.non_finite = NonFinite::fail, .lockstep = {.shards = 2}}, "lockstep mode does not work with non_finite");
    CHECK_THROWS_WITH_AS(DistributedDataParallel(Spread(), group),
                         doctest::Contains("lie on different types of devices: here on cpu, there on meta"), Error);
    Forked model;
    DistributedDataParallel ddp(model, group, {.lockstep = {.shards = 2}});
    const CommHook hook = [](GradBucket& bucket, const ProcessGroup&) -> BucketResult {
      return [values = bucket.buffer()] { return values; };
    };
    CHECK_THROWS_WITH_AS(ddp.register_comm_hook(hook), doctest::Contains("lockstep mode takes no communication hook"),
                         Error);
  });
  const auto errors = run_group(2, Over::arena, [](const ProcessGroup& group) {
    Forked model;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = group.rank() == 1});
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK_THROWS_WITH_AS(std::rethrow_exception(error), doctest::Contains("find_unused_parameters=1"), Error);
  }
}

}  // namespace graph_test
