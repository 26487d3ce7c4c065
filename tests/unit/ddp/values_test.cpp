// What happens to gradients' values: other types, sparse ones, hooks, NaN; and to parameters that drift apart.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <chrono>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/checks/all_finite.h"
#include "lockstep/train/ddp/comm_hooks/default_hooks.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"
#include "tests/unit/ddp/models.h"

namespace values_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

// A table of which few rows are used, and a dense layer.
struct LookupImpl : torch::nn::Module {
  explicit LookupImpl(bool sparse) {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 4).sparse(sparse)));
    layer = register_module("layer", torch::nn::Linear(4, 2));
  }
  at::Tensor forward(const at::Tensor& rows, bool look_up = true) {
    return layer->forward(look_up ? table->forward(rows) : here(at::ones({1, 4})));
  }
  torch::nn::Embedding table = nullptr;
  torch::nn::Linear layer = nullptr;
};
TORCH_MODULE(Lookup);

// Whose forward may reach none of its parameters.
struct SkippedImpl : LookupImpl {
  SkippedImpl() : LookupImpl(true) {}
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& x, bool use) {
    return use ? LookupImpl::forward(rows).sum() + x.sum() : 2 * x.sum();
  }
};
TORCH_MODULE(Skipped);

struct ComplexImpl : torch::nn::Module {
  ComplexImpl() { factor = register_parameter("factor", here(at::ones({3, 2}, at::kComplexDouble))); }
  at::Tensor forward(const at::Tensor& x) { return at::real(at::mul(factor, x)); }
  at::Tensor factor;
};
TORCH_MODULE(Complex);

std::string text_of(const std::exception_ptr& error) {
  REQUIRE(error);
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("mixed precision: a rank that reaches no parameter reduces sparse gradients in the others' type" *
          on_host()) {
  for (const auto& reduce : {std::optional<at::ScalarType>(), std::optional(at::kFloat)}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      Skipped model;
      set_weights(model, 1);
      DistributedDataParallel ddp(
          model, group,
          {.find_unused_parameters = true, .mixed_precision = {.param_dtype = at::kBFloat16, .reduce_dtype = reduce}});
      const at::Tensor rows = at::tensor({3, 7}), x = at::ones({2}).requires_grad_();
      for (int step = 0; step < 2; ++step) {
        ddp.zero_grad();
        ddp(rows, x, group.rank() == 0).backward();
        REQUIRE(model->table->weight.grad().defined());
        CHECK(model->table->weight.grad().dtype() == at::kFloat);
        CHECK(model->table->weight.grad().to_dense().count_nonzero().item<int>() > 0);
      }
    });
  }
}

TEST_CASE("torch::load into a wrapped model goes on averaging" * on_host()) {
  for (const Weighting weighting : {Weighting::ranks, Weighting::samples}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      torch::nn::Linear model(4, 4), saved(4, 4);
      set_weights(saved, 3);
      DistributedDataParallel ddp(model, group, {.weighting = weighting});
      for (int step = 0; step < 2; ++step) {
        std::stringstream file;
        torch::save(saved, file);
        torch::load(model, file);
        ddp.zero_grad();
        ddp(at::full({3, 4}, group.rank() + 1.0, at::kFloat)).sum().backward();
        CHECK(at::allclose(model->weight.grad(), at::full({4, 4}, 4.5)));  // 3 (1 + 2) / 2
        CHECK(at::equal(model->weight, saved->weight));
      }
    });
  }
}

TEST_CASE("parameters whose gradients would be lost are refused by name on all ranks" * on_host()) {
  const auto texts = [](const DdpOptions& options, const auto& step) {
    std::vector<std::string> all;
    for (const auto& error : run_group(2, Over::arena, [&](const ProcessGroup& group) {
           Forked model;
           DistributedDataParallel ddp(model, group, options);
           for (int i = 0; i < 2; ++i) step(ddp, model, i == 1 && group.rank() == 0);
         })) {
      all.push_back(text_of(error));
    }
    return all;
  };
  const auto chosen = [](auto& ddp, auto&, bool) {
    ddp(wave({3, 4}, 0), true).sum().backward({}, false, false, ddp.parameters());
  };
  for (const std::string& text : texts({.mixed_precision = {.param_dtype = at::kBFloat16}}, chosen)) {
    CHECK(text.find("backward was called with `inputs` that include parameter left.weight") != std::string::npos);
  }
  const auto converted = [](auto& ddp, auto& model, bool converts) {
    if (converts) model->to(at::kDouble);
    const auto type = model->left->weight.scalar_type();
    ddp(wave({3, 4}, 0).to(type), true).sum().backward();
  };
  for (const std::string& text : texts({.find_unused_parameters = true}, converted)) {
    CHECK(text.find("the dtype or device of parameter left.weight changed after") != std::string::npos);
  }
  for (const DdpOptions& options : {DdpOptions(), DdpOptions{.lockstep = {.shards = 2}}}) {
    for (const auto& error : run_group(2, Over::arena, [&](const ProcessGroup& group) {
           Forked model;
           model->right->bias.requires_grad_(false);
           DistributedDataParallel ddp(model, group, options);
           const auto step = [&] {
             const auto backward = [&](const Shard&) {
               ddp(wave({3, 4}, 0), true).sum().backward();
               return 0.0;
             };
             if (options.lockstep.shards == 0) {
               backward({});
             } else {
               ddp.for_each_shard(backward);
             }
           };
           step();
           CHECK_FALSE(model->right->bias.grad().defined());
           if (group.rank() == 1) model->right->bias.requires_grad_();
           step();
         })) {
      CHECK(text_of(error).find("parameter right.bias was frozen when") != std::string::npos);
    }
  }
}

// fault: 36
TEST_CASE("parameters that drift apart are named in lockstep mode too" * on_host()) {
  const auto errors = run_group(2, Over::arena, [&](const ProcessGroup& group) {
    Forked model;
    DistributedDataParallel ddp(model, group, {.compare_parameters_every = 2, .lockstep = {.shards = 2}});
    for (int step = 0; step < 5; ++step) {
      ddp.for_each_shard([&](const Shard& shard) {
        ddp(wave({3, 4}, shard.index), true).sum().backward();
        return 0.0;
      });
      const at::NoGradGuard no_grad;
      if (step == 2 && group.rank() == 1) model->right->bias[3] += 1;
      if (step == 4) FAIL("the difference was not found");
    }
  });
  for (const auto& error : errors) {
    const std::string text = text_of(error);
    CHECK(text.find("after 4 backward passes") != std::string::npos);
    CHECK(text.find("right.bias, where rank 0 has other values than rank 1") != std::string::npos);
  }
}

// fault: 35
TEST_CASE("NaN and Inf are found before they spread, and named by rank and parameter") {
  for (const Over transport : kTransports) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      run_group_or_throw(3, transport, [&](const ProcessGroup& group) {
        Forked model;
        set_weights(model, 1);
        DistributedDataParallel ddp(model, group, {.non_finite = NonFinite::skip_step});
        torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        const at::Tensor before = model->left->weight.detach().clone();
        const at::Tensor x = wave({3, 4}, group.rank());
        if (group.rank() == 2) x[1][2] = bad;
        ddp(x, true).sum().backward();
        optimizer.step();
        CHECK(at::equal(model->left->weight, before));
        CHECK_FALSE(model->left->weight.grad().defined());
        CHECK(ddp.stats().skipped_steps == 1);
        // And the next batch is trained on.
        ddp(wave({3, 4}, group.rank()), true).sum().backward();
        optimizer.step();
        CHECK_FALSE(at::equal(model->left->weight, before));
        CHECK(same_on_all_ranks(group, model->left->weight));
      });
      run_group_or_throw(3, transport, [&](const ProcessGroup& group) {
        Forked model;
        DistributedDataParallel ddp(model, group, {.non_finite = NonFinite::fail});
        const at::Tensor x = wave({3, 4}, group.rank());
        if (group.rank() == 1) x[0][0] = bad;
        CHECK_THROWS_WITH_AS(ddp(x, true).sum().backward(),
                             doctest::Contains("NaN or Inf on rank 1 in the gradient of"), Error);
        // The group goes on.
        ddp(wave({3, 4}, 0), true).sum().backward();
        CHECK(same_on_all_ranks(group, model->left->weight.grad()));
      });
    }
  }
}

TEST_CASE("all_finite sees every element of every type") {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat}) {
    for (const std::int64_t size : {1, 7, 5000}) {
      const at::Tensor values = at::ones({size}, type) * 60000;
      CHECK(all_finite(values));
      for (const std::int64_t at : {std::int64_t{0}, size / 2, size - 1}) {
        for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity()}) {
          at::Tensor broken = values.clone();
          broken[at] = bad;
          CHECK_FALSE(all_finite(broken));
        }
      }
    }
  }
  CHECK(all_finite(at::zeros({3}, at::kLong)));
  CHECK(all_finite(at::zeros({0})));
  CHECK_FALSE(all_finite(at::full({4, 4}, std::numeric_limits<float>::infinity()).slice(1, 1, 2)));
}

namespace {

// What each rank throws when rank 1's parameters have changed after the third of five backwards.
std::vector<std::string> texts_of_drift(int ranks, const DdpOptions& options, bool evaluates) {
  std::vector<std::string> texts;
  const auto errors = run_group(ranks, Over::arena, [&](const ProcessGroup& group) {
    Forked model;
    DistributedDataParallel ddp(model, group, options);
    ddp.train(!evaluates);
    for (int step = 0; step < 5; ++step) {
      ddp.zero_grad();
      if (evaluates && group.rank() == 1) (void)ddp(wave({3, 4}, 0), true);
      ddp(wave({3, 4}, group.rank()), true).sum().backward();
      const at::NoGradGuard no_grad;
      if (step == 2 && group.rank() == 1) model->right->bias[3] += 1;
      if (step == 4) FAIL("the difference was not found");
    }
  });
  for (const auto& error : errors) {
    texts.push_back(text_of(error));
    CHECK(texts.back().find("after 4 backward passes") != std::string::npos);
    CHECK(texts.back().find("right.bias, where rank 0 has other values than rank 1") != std::string::npos);
  }
  return texts;
}

}  // namespace

// fault: 36
TEST_CASE("parameters that drift apart are named on all ranks at the next comparison") {
  for (const std::string& text : texts_of_drift(3, {.compare_parameters_every = 2}, /*evaluates=*/false)) {
    CHECK(text.find("set compare_parameters_every to 0") != std::string::npos);
  }
}

TEST_CASE("so are those of a model that trains in evaluation mode, though a rank may evaluate with gradients alone") {
  CHECK(texts_of_drift(2, {}, /*evaluates=*/true).size() == 2);
}

TEST_CASE("who trains the module and not the wrapper is warned, and the difference is found when it is asked for") {
  const CapturedLog log;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Forked model;
    set_weights(model, 1);
    DistributedDataParallel ddp(model, group), equal(Forked(), group, {.compare_parameters_every = 0});
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    const auto step = [&](auto& of) {
      optimizer.zero_grad();
      of(wave({3, 4}, group.rank()), true).sum().backward();
      optimizer.step();
    };
    for (int i = 0; i < 2; ++i) step(model);
    if (group.rank() == 0) CHECK(log.text().empty());  // which alone warns, maybe before another one is here
    step(model);
    if (group.rank() == 0) CHECK(contains(log.text(), "no backward pass so far went through ddp(...)"));
    for (int i = 0; i < 9; ++i) step(model);
    CHECK_ERROR(error_of([&] { ddp.compare_parameters(group); }), ErrorKind::desync,
                "after 0 backward passes through ddp(...) the parameters differ", "averages nothing");
    {
      const at::NoGradGuard no_grad;
      equal.parameters()[0][0] += group.rank();
    }
    equal.compare_parameters(group);  // they may differ
  });
  CHECK(log.text().find("no backward pass so far") == log.text().rfind("no backward pass so far"));
}

TEST_CASE("parameters are compared among those who ask, whatever the groups of their wrappers" * on_host()) {
  run_worlds_or_throw(4, [&](const World& world) {
    const ProcessGroup& group = world;
    const ProcessGroup pair = *group.split(group.rank() / 2), first = *group.split(group.rank() % 2);
    Forked model, others;
    set_weights(model, 1);
    set_weights(others, group.rank() / 2);
    DistributedDataParallel ddp(model, pair), apart(others, pair),
        free(Forked(), pair, {.compare_parameters_every = group.rank() / 2 == 0 ? 0 : 100});
    if (group.rank() % 2 == 0) ddp.compare_parameters(first);  // one of each pair, without the other
    ddp.compare_parameters(group);
    apart.compare_parameters(pair);
    CHECK_ERROR(error_of([&] { apart.compare_parameters(group); }), ErrorKind::desync,
                "where rank 0 has other values than rank 2, 3");
    free.compare_parameters(group);  // some may differ
    torch::nn::Linear small(2, 2);
    const auto of_half = [&] {
      if (group.rank() < 2) return ddp.compare_parameters(group);
      DistributedDataParallel(small, pair).compare_parameters(group);
    };
    CHECK_ERROR(error_of(of_half), ErrorKind::invalid_argument, "First difference, the number of parameters: rank 0");
    group.barrier();
  });
}

TEST_CASE("a module that is used beside its wrapper is nothing to warn of") {
  const CapturedLog log;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Forked model;
    DistributedDataParallel ddp(model, group);
    const at::Tensor x = wave({3, 4}, group.rank());
    for (int i = 0; i < 2; ++i) model(x, true).sum().backward();
    {
      const auto guard = ddp.no_sync();
      for (int i = 0; i < 5; ++i) ddp(x, true).sum().backward();
      for (int i = 0; i < 2; ++i) model(x, true).sum().backward();
    }
    ddp(x, true).sum().backward();
    for (int i = 0; i < 9; ++i) model(x, true).sum().backward();
    ddp.compare_parameters(group);
  });
  CHECK(log.text().find("no backward pass so far") == std::string::npos);
}

TEST_CASE("sparse gradients are gathered and averaged, also if a rank has none" * on_host()) {
  for (const Over transport : kTransports) {
    for (const bool find_unused : {false, true}) {
      run_group_or_throw(3, transport, [&](const ProcessGroup& group) {
        Lookup model(true), dense(false);
        set_weights(model, 1);
        set_weights(dense, 1);
        DistributedDataParallel ddp(model, group, {.find_unused_parameters = find_unused});
        DistributedDataParallel reference(dense, group);
        for (int step = 0; step < 3; ++step) {
          const at::Tensor rows = at::tensor({3, 7 + group.rank(), 3, 40 - step}, at::kLong);
          ddp.zero_grad();
          reference.zero_grad();
          ddp(rows).square().sum().backward();
          reference(rows).square().sum().backward();
          CHECK(model->table->weight.grad().is_sparse());
          CHECK(at::allclose(model->table->weight.grad().to_dense(), dense->table->weight.grad()));
          CHECK(at::allclose(model->layer->weight.grad(), dense->layer->weight.grad()));
        }
      });
    }
  }
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Lookup model(true);
    set_weights(model, 1);
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    ddp(at::tensor({3}, at::kLong), group.rank() == 0).sum().backward();
    const at::Tensor gradient = model->table->weight.grad().to_dense();
    CHECK(at::allclose(gradient[3], model->layer->weight.sum(0) / 2));
    CHECK(gradient.slice(0, 4).abs().sum().item<float>() == 0);
  });
}

// On the host: torch copies no lazily conjugated tensor from another device that has no kernel for it.
TEST_CASE("complex parameters are averaged" * on_host()) {
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Complex model;
    DistributedDataParallel ddp(model, group);
    const auto x = [](int rank) {
      return at::complex(wave({3, 2}, rank), wave({3, 2}, rank + 3)).to(at::kComplexDouble);
    };
    ddp(x(group.rank())).sum().backward();
    CHECK(at::allclose(model->factor.grad(), at::conj((x(0) + x(1)) / 2)));
  });
}

TEST_CASE("mixed precision: forward, backward and reduction in a lower type, parameters and gradients in their own") {
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [&](const ProcessGroup& group) {
      Net model(64), full(64);
      set_weights(model, 1);
      set_weights(full, 1);
      DistributedDataParallel ddp(model, group,
                                  {.mixed_precision = {.param_dtype = at::kBFloat16, .buffer_dtype = at::kBFloat16}});
      DistributedDataParallel reference(full, group);
      torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1));
      const at::Tensor start = model->middle->weight.detach().clone();
      for (int step = 0; step < 3; ++step) {
        const at::Tensor x = wave({16, 20}, group.rank() * 7 + step);
        ddp.zero_grad();
        reference.zero_grad();
        {
          const auto guard = ddp.no_sync();
          ddp(x).square().mean().backward();
          CHECK((model->middle->weight.scalar_type() == at::kFloat));
          CHECK((model->middle->weight.grad().scalar_type() == at::kFloat));
        }
        const at::Tensor output = ddp(x);
        CHECK((output.scalar_type() == at::kBFloat16));
        output.square().mean().backward();
        CHECK((model->middle->weight.scalar_type() == at::kFloat));
        CHECK(same_on_all_ranks(group, model->middle->weight.grad()));
        CHECK((model->norm->running_mean.scalar_type() == at::kBFloat16));
        if (step == 0) {
          for (int twice = 0; twice < 2; ++twice) reference(x).square().mean().backward();
          const at::Tensor found = model->last->weight.grad(), expected = full->last->weight.grad();
          CHECK((found - expected).norm().item<double>() < 0.05 * expected.norm().item<double>());
        }
        optimizer.step();
        CHECK(same_on_all_ranks(group, model->middle->weight));
      }
      CHECK_FALSE(at::equal(model->middle->weight, start));
      {
        const at::NoGradGuard no_grad;
        ddp.eval();
        CHECK((ddp(wave({2, 20}, 0)).scalar_type() == at::kBFloat16));
        CHECK((model->middle->weight.scalar_type() == at::kFloat));
      }
      // A forward without backward is forgotten when the state is asked for.
      ddp.train();
      (void)ddp(wave({2, 20}, 0));
      CHECK((ddp.state_dict()[0].second.scalar_type() == at::kFloat));
    });
  }
}

// feature: E-19
TEST_CASE("a communication hook sees every bucket once a backward, and its results are the gradients") {
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [&](const ProcessGroup& group) {
      Net model, plain;
      set_weights(model, 1);
      set_weights(plain, 1);
      DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 0.1});
      DistributedDataParallel reference(plain, group);
      std::vector<std::size_t> seen;
      std::size_t names = 0;
      int last = 0;
      ddp.register_comm_hook([&](GradBucket& bucket, const ProcessGroup& over) -> BucketResult {
        seen.push_back(bucket.index());
        names += bucket.names().size();
        last += bucket.is_last() ? 1 : 0;
        CHECK(bucket.gradients().front().sizes() == bucket.parameters().front().sizes());
        const at::Tensor half = bucket.buffer().to(at::kDouble) / over.size();
        over.all_reduce(half);
        return [half] { return half; };
      });
      for (int step = 0; step < 2; ++step) {
        seen.clear();
        names = 0;
        last = 0;
        ddp.zero_grad();
        reference.zero_grad();
        ddp(wave({6, 20}, group.rank() + step)).square().mean().backward();
        reference(wave({6, 20}, group.rank() + step)).square().mean().backward();
        const auto found = gradients_of(ddp.parameters()), expected = gradients_of(reference.parameters());
        for (std::size_t i = 0; i < found.size(); ++i) CHECK(at::allclose(found[i], expected[i]));
        CHECK(names == ddp.parameters().size());
        CHECK(last == 1);
        for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == i);
      }
      CHECK(ddp.logging_data().has_comm_hook);
      CHECK_THROWS_WITH_AS(ddp.register_comm_hook([](GradBucket&, const ProcessGroup&) -> BucketResult { return {}; }),
                           doctest::Contains("registered already"), Error);
      CHECK_THROWS_WITH_AS(
          reference.register_comm_hook([](GradBucket&, const ProcessGroup&) -> BucketResult { return {}; }),
          doctest::Contains("was called after 2 backward passes"), Error);
      CHECK_THROWS_WITH_AS(reference.register_comm_hook({}), doctest::Contains("empty hook"), Error);
    });
  }
}

// feature: E-08
TEST_CASE("reduction begins before backward has ended") {
  run_group_or_throw(2, Over::links, [&](const ProcessGroup& group) {
    Net model;
    DistributedDataParallel ddp(model, group, {.bucketing = Bucketing::off});
    int early = 0;
    ddp.register_comm_hook([&](GradBucket& bucket, const ProcessGroup& over) {
      if (!model->first->weight.grad().defined()) ++early;
      return all_reduce_hook()(bucket, over);
    });
    ddp(wave({6, 20}, group.rank())).sum().backward();
    CHECK(early == 0);  // the first one shows the order of buckets
    ddp.zero_grad();
    ddp(wave({6, 20}, group.rank())).sum().backward();
    CHECK(early >= 3);  // the parameters of the last and the middle layer
  });
}

TEST_CASE("a hook that gives something else than it got is told so") {
  const auto errors = run_group(2, Over::arena, [&](const ProcessGroup& group) {
    Forked model;
    DistributedDataParallel ddp(model, group);
    ddp.register_comm_hook(
        [](GradBucket&, const ProcessGroup&) -> BucketResult { return [] { return here(at::zeros({3})); }; });
    ddp(wave({3, 4}, 0), true).sum().backward();
  });
  for (const auto& error : errors)
    CHECK(text_of(error).find(" has 3 elements, but the bucket has 40") != std::string::npos);
}

// feature: E-09
TEST_CASE("a hook that fails on one rank fails all of them, with its text") {
  for (const bool late : {false, true}) {
    // Not by run_group, which would tell the others itself.
    const auto groups = local_groups(2, Over::arena, {.timeout = std::chrono::seconds(30)});
    const auto errors = run_ranks(2, [&](int rank) {
      const ProcessGroup& group = groups[static_cast<std::size_t>(rank)];
      Forked model;
      DistributedDataParallel ddp(model, group);
      ddp.register_comm_hook([late](GradBucket& bucket, const ProcessGroup& over) -> BucketResult {
        const auto fail = [&over] {
          if (over.rank() == 1) throw std::runtime_error("out of luck");
        };
        if (!late) fail();
        return [fail, result = all_reduce_hook()(bucket, over)] {
          const at::Tensor averaged = result();
          fail();
          return averaged;
        };
      });
      for (int step = 0; step < 2; ++step) ddp(wave({3, 4}, rank), true).sum().backward();
    });
    for (const auto& error : errors) CHECK(text_of(error).find("out of luck") != std::string::npos);
  }
}

TEST_CASE("equal first inputs are noticed") {
  run_group_or_throw(3, Over::links, [](const ProcessGroup& group) {
    CHECK(have_same_values(wave({5, 3}, 1), group));
    CHECK_FALSE(have_same_values(wave({5, 3}, group.rank() == 2 ? 1 : 2), group));
    CHECK_FALSE(have_same_values(at::zeros({0}), group));
  });
}

}  // namespace values_test
