#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/average_gradients.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/support/captured_log.h"
#include "tests/unit/ddp/models.h"

namespace ddp_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

std::size_t entries_of(const char* folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

// Of files and of shared memory; those without a name are malloc's and come and go.
std::size_t named_mappings() {
  std::ifstream file("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);) count += line.find('/') != std::string::npos;
  return count;
}

CommHook plain_hook() {
  return [](GradBucket& bucket, const ProcessGroup& group) -> BucketResult {
    const at::Tensor values = bucket.buffer();
    group.all_reduce(values, ReduceOp::avg);
    return [values] { return values; };
  };
}

}  // namespace

// feature: E-06, E-09, E-26, Z-11
TEST_CASE("gradients after backward are bitwise those of averaging afterwards, however they are bucketed") {
  for (const Over transport : kTransports) {
    for (const DdpOptions& options :
         {DdpOptions{}, DdpOptions{.bucket_cap_mb = 0.01}, DdpOptions{.bucketing = Bucketing::off}}) {
      run_group_or_throw(3, transport, [&](const ProcessGroup& group) {
        Net reference;
        Net model;
        set_weights(reference, 3);
        set_weights(model, group.rank());  // replaced by rank 0's
        set_weights(group.rank() == 0 ? model : Net(), 3);
        DistributedDataParallel ddp(model, group, options);
        for (int step = 0; step < 3; ++step) {
          const at::Tensor x = wave({6, 20}, group.rank() * 10 + step);
          reference->zero_grad();
          reference->forward(x).square().mean().backward();
          average_gradients(reference->parameters(), group);
          ddp.zero_grad();
          ddp(x).square().mean().backward();
          const auto expected = gradients_of(reference->parameters());
          const auto found = gradients_of(ddp.parameters());
          for (std::size_t i = 0; i < found.size(); ++i) CHECK(at::equal(found[i], expected[i]));
        }
        CHECK(ddp.stats().backwards == (group.size() > 1 ? 3 : 0));
      });
    }
  }
}

// feature: E-25, G-02
TEST_CASE("large gradients are allocated in shared memory and stay there; nothing else is copied" * on_host()) {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Net model;
    DistributedDataParallel ddp(model, group);
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp->forward(wave({6, 20}, group.rank())).sum().backward();
      CHECK(group.is_shared(model->middle->weight.grad()));
    }
    const auto stats = ddp.stats();
    CHECK(stats.reduced_bytes - stats.copied_bytes == 3 * model->middle->weight.nbytes());
    CHECK(stats.communication_seconds > 0);
  });
}

// feature: E-27
TEST_CASE("training keeps parameters and optimizer steps bitwise equal on all ranks") {
  for (const Over transport : kTransports) {
    run_group_or_throw(4, transport, [](const ProcessGroup& group) {
      Net model(64);
      set_weights(model, group.rank());
      torch::optim::SGD before_wrapping(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
      DistributedDataParallel ddp(model, group);
      for (int step = 0; step < 20; ++step) {
        before_wrapping.zero_grad();
        (ddp(wave({5, 20}, step * 4 + group.rank())) - 1).square().mean().backward();
        before_wrapping.step();
      }
      for (const auto& parameter : ddp.parameters()) CHECK(same_on_all_ranks(group, parameter));
    });
  }
}

// feature: E-03, Z-07
TEST_CASE("construction makes parameters and buffers rank 0's, and forward in training keeps the buffers so") {
  run_group_or_throw(3, Over::arena, [](const ProcessGroup& group) {
    Net model;
    set_weights(model, group.rank());
    {
      const at::NoGradGuard no_grad;
      model->norm->running_mean.fill_(group.rank());
      model->norm->num_batches_tracked.fill_(group.rank() + 7);
    }
    DistributedDataParallel ddp(model, group);
    for (const auto& parameter : model->parameters()) CHECK(same_on_all_ranks(group, parameter));
    CHECK(model->norm->running_mean[0].item<float>() == 0);
    CHECK(model->norm->num_batches_tracked.item<std::int64_t>() == 7);
    for (int step = 0; step < 2; ++step) ddp(wave({4, 20}, group.rank())).sum().backward();
    ddp.eval();
    (void)ddp(wave({4, 20}, 0));
    CHECK(same_on_all_ranks(group, model->norm->running_mean));
    // Ranks may evaluate different numbers of batches.
    for (int extra = 0; extra < group.rank(); ++extra) (void)ddp(wave({4, 20}, 0));
    group.barrier();
  });
}

TEST_CASE("an evaluation under no_sync is warned of once where buffers differ, and not where they are the same") {
  for (const bool syncs : {true, false}) {
    const CapturedLog log;
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      Net model;
      DistributedDataParallel ddp(model, group);
      ddp(wave({4, 20}, group.rank())).sum().backward();
      if (syncs) ddp.sync_buffers();
      const auto guard = ddp.no_sync();
      ddp.eval();
      for (int i = 0; i < 2; ++i) (void)ddp(wave({4, 20}, 0));
      group.barrier();
    });
    std::size_t warnings = 0;
    const std::string text = log.text();
    for (std::size_t at = 0; (at = text.find("an evaluation under no_sync()", at)) != std::string::npos; ++at)
      ++warnings;
    CHECK(warnings == (syncs ? 0 : 2));
  }
}

TEST_CASE("no_sync keeps gradients local, and the next synchronised backward averages what has added up") {
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      Forked model;
      set_weights(model, 1);
      DistributedDataParallel ddp(model, group);
      const auto x = [&](int step) { return wave({3, 4}, step * 2 + group.rank()); };
      {
        const auto guard = ddp.no_sync();
        ddp(x(0), true).sum().backward();
      }
      CHECK_FALSE(same_on_all_ranks(group, model->left->weight.grad()));
      ddp(x(1), true).sum().backward();
      const at::Tensor synced = model->left->weight.grad().clone();
      CHECK(same_on_all_ranks(group, synced));
      model->zero_grad();
      model->forward(x(0), true).sum().backward();
      model->forward(x(1), true).sum().backward();
      at::Tensor mean = model->left->weight.grad().clone();
      CHECK_FALSE(same_on_all_ranks(group, mean));  // the bare module stays on its rank
      group.all_reduce(mean, ReduceOp::avg);
      CHECK(at::allclose(synced, mean));
    });
  }
}

// feature: E-05, Z-08
TEST_CASE("frozen parameters are neither hooked nor reduced") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Forked model;
    model->right->weight.set_requires_grad(false);
    model->right->bias.set_requires_grad(false);
    DistributedDataParallel ddp(model, group);
    CHECK_FALSE(GradientHook::watches(model->right->weight));
    CHECK(GradientHook::watches(model->left->weight));
    ddp(wave({3, 4}, group.rank()), true).sum().backward();
    CHECK(same_on_all_ranks(group, model->left->weight.grad()));
    CHECK_FALSE(model->right->weight.grad().defined());
  });
}

// fault: 37
// feature: E-18, Z-17
TEST_CASE("a parameter without gradient is named by the same backward, also to ranks that used it") {
  for (const bool only_one_rank : {false, true}) {
    const auto errors = run_group(2, Over::arena, [&](const ProcessGroup& group) {
      Forked model;
      DistributedDataParallel ddp(model, group);
      ddp(wave({3, 4}, 0), only_one_rank && group.rank() == 0).sum().backward();
    });
    for (const auto& error : errors) {
      REQUIRE(error);
      CHECK_THROWS_WITH_AS(std::rethrow_exception(error), doctest::Contains("right.weight, right.bias"), Error);
    }
  }
}

// feature: E-04
TEST_CASE("models that differ are refused on all ranks by the first difference") {
  const auto errors = run_group(3, Over::arena, [](const ProcessGroup& group) {
    Net model(group.rank() == 2 ? 128 : 256);
    DistributedDataParallel ddp(model, group);
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    try {
      std::rethrow_exception(error);
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::invalid_argument);
      const std::string text = e.what();
      CHECK(text.find("rank 2 differs from that of rank 0") != std::string::npos);
      CHECK(text.find("parameter first.weight [256, 20] Float") != std::string::npos);
      CHECK(text.find("parameter first.weight [128, 20] Float") != std::string::npos);
    }
  }
}

// A module that is not shared is refused when the program is compiled, with what to write.
struct Plain : torch::nn::Module {};
static_assert(SharedModule<std::shared_ptr<Plain>> && SharedModule<torch::nn::Linear>);
static_assert(!SharedModule<Plain> && !SharedModule<Plain*> && !SharedModule<at::Tensor>);

// feature: E-19
TEST_CASE("what cannot be wrapped is refused") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    Forked frozen;
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    CHECK_THROWS_WITH_AS(DistributedDataParallel(frozen, group),
                         doctest::Contains("no parameter of the module requires a gradient"), Error);
  });
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Forked model;
    DistributedDataParallel once(model, group);
    CHECK_THROWS_WITH_AS(DistributedDataParallel(model, group), doctest::Contains("left.weight is wrapped already"),
                         Error);
  });
}

TEST_CASE("building and destroying leaves no hook, thread, descriptor or mapping behind") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Net model;
    const auto train = [&](int rounds) {
      for (int round = 0; round < rounds; ++round) {
        DistributedDataParallel ddp(model, group, {.find_unused_parameters = round % 2 == 1});
        if (round % 3 == 0) ddp.register_comm_hook(plain_hook());
        ddp.zero_grad();
        ddp(wave({3, 20}, group.rank())).sum().backward();
        CHECK(same_on_all_ranks(group, model->last->bias.grad()));
      }
    };
    struct Held {
      std::size_t threads = 0, descriptors = 0, mappings = 0;
    };
    // By one rank while the other waits: to look takes a descriptor.
    const auto look = [&] {
      Held held;
      group.barrier();
      if (group.rank() == 0) {
        held = {entries_of("/proc/self/task"), entries_of("/proc/self/fd"), named_mappings()};
      }
      group.barrier();
      return held;
    };
    train(10);
    const Held before = look();
    train(100);
    const Held after = look();
    CHECK(after.threads == before.threads);
    CHECK(after.descriptors == before.descriptors);
    CHECK(after.mappings == before.mappings);
    CHECK_FALSE(GradientHook::watches(model->last->bias));
  });
}

// feature: E-12, E-13, E-14, E-27
TEST_CASE("the wrapped module stays itself") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Net model;
    DistributedDataParallel ddp(model, group);
    CHECK(ddp.module().ptr().get() == model.ptr().get());
    CHECK(ddp->module()->answer == 42);
    CHECK(ddp.parameters()[0].is_same(model->parameters()[0]));
    std::vector<std::string> keys;
    for (const auto& [name, tensor] : ddp.state_dict()) keys.push_back(name);
    const std::vector<std::string> expected = {"first.weight",
                                               "first.bias",
                                               "norm.weight",
                                               "norm.bias",
                                               "norm.running_mean",
                                               "norm.running_var",
                                               "norm.num_batches_tracked",
                                               "middle.weight",
                                               "middle.bias",
                                               "last.weight",
                                               "last.bias"};
    CHECK(keys == expected);
    const auto prefixed = ddp.state_dict(StateDictKeys::module_prefix);
    CHECK(prefixed[0].first == "module.first.weight");
    Net other;
    set_weights(other, 9);
    DistributedDataParallel target(other, group);
    target.load_state_dict(prefixed);
    CHECK(at::equal(other->middle->weight, model->middle->weight));
    auto broken = ddp.state_dict();
    broken[0].second = at::zeros({3});
    broken[10].first = "lost.bias";
    CHECK_THROWS_WITH_AS(target.load_state_dict(broken), doctest::Contains("different: first.weight is Float [3]"),
                         Error);
    CHECK_THROWS_WITH_AS(target.load_state_dict(broken), doctest::Contains("missing from the state: last.bias"), Error);
    CHECK_THROWS_WITH_AS(target.load_state_dict(broken), doctest::Contains("unexpected in the state: lost.bias"),
                         Error);
  });
}

}  // namespace ddp_test
