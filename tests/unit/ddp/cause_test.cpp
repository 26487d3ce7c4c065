// What goes wrong on one rank only: the others are told at once, and what it was.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/train/ddp/comm_hooks/default_hooks.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/ddp/uneven_inputs/join.h"
#include "tests/support/expect_error.h"
#include "tests/unit/ddp/models.h"

namespace cause_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

struct ThrowsInBackward : torch::autograd::Function<ThrowsInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("the data of step 3 are damaged\nand a stack that nobody wants to read");
  }
};

struct CarefulImpl : torch::nn::Module {
  CarefulImpl() {
    first = register_module("first", torch::nn::Linear(6, 5));
    last = register_module("last", torch::nn::Linear(5, 3));
    move_here(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (x.numel() == 0) throw std::runtime_error("the batch is empty\nand a stack");
    const at::Tensor h = first->forward(x);
    return last->forward(breaks ? ThrowsInBackward::apply(h) : h);
  }
  bool breaks = false;
  torch::nn::Linear first = nullptr, last = nullptr;
};
TORCH_MODULE(Careful);

at::Tensor loss_of(const at::Tensor& y) { return y.square().mean(); }

// Runs body as ranks that each have a world; what one throws leaves its world's scope, as in main().
std::vector<std::exception_ptr> run_worlds(int ranks, Over over, const std::function<void(const World&)>& body) {
  const auto groups = local_groups(ranks, over, {.timeout = std::chrono::seconds(30)});
  return run_ranks(ranks, [&](int rank) {
    Membership membership;
    membership.rank = rank;
    membership.size = ranks;
    const World world(std::move(membership), groups[static_cast<std::size_t>(rank)]);
    body(world);
  });
}

Error error_in(const std::exception_ptr& thrown) {
  REQUIRE(thrown);
  return error_of([&] { std::rethrow_exception(thrown); });
}

struct Mishap {
  const char* what;
  std::function<void(const World&)> happens;  // on rank 1 it throws
  std::string text;
};

void check_quoted(std::initializer_list<Mishap> mishaps) {
  for (const Mishap& mishap : mishaps) {
    for (const Over over : {Over::arena, Over::links}) {
      INFO(mishap.what << (over == Over::arena ? " over the arena" : " over links"));
      const auto errors = run_worlds(3, over, mishap.happens);
      CHECK(errors[1]);
      for (const std::size_t rank : {0U, 2U}) {
        const Error error = error_in(errors[rank]);
        CHECK_ERROR(error, ErrorKind::aborted, "rank 1 ", mishap.text);
        CHECK_FALSE(contains(error.what(), "stack"));
      }
    }
  }
}

}  // namespace

// fault: 34
// feature: E-09
TEST_CASE("what one rank throws from forward, backward, a hook or an argument check, the others quote at once") {
  check_quoted({
      {"forward",
       [](const World& world) {
         DistributedDataParallel ddp(Careful(), world.group());
         for (int step = 0; step < 4; ++step) {
           const bool fails = step == 2 && world.rank() == 1;
           loss_of(ddp(fails ? here(at::zeros({0, 6})) : wave({4, 6}, world.rank()))).backward();
         }
       },
       "failed in forward of DistributedDataParallel: the batch is empty"},
      {"backward",
       [](const World& world) {
         DistributedDataParallel ddp(Careful(), world.group());
         for (int step = 0; step < 4; ++step) {
           at::Tensor loss = loss_of(ddp(wave({4, 6}, world.rank())));
           if (step == 2 && world.rank() == 1) loss = ThrowsInBackward::apply(loss);
           loss.backward();
         }
       },
       "failed in backward of DistributedDataParallel: the data of step 3 are damaged"},
      {"hook",
       [](const World& world) {
         DistributedDataParallel ddp(Careful(), world.group());
         ddp.register_comm_hook([](GradBucket& bucket, const ProcessGroup& group) {
           if (bucket.backward() == 2 && group.rank() == 1) throw std::runtime_error("the hook has lost its state");
           return all_reduce_hook()(bucket, group);
         });
         for (int step = 0; step < 4; ++step) loss_of(ddp(wave({4, 6}, world.rank()))).backward();
       },
       "backward of DistributedDataParallel failed: the hook has lost its state"},
      {"argument",
       [](const World& world) {
         const at::Tensor tensor = at::ones({4});
         world.group().all_reduce(tensor);
         world.group().all_reduce(world.rank() == 1 ? at::Tensor() : tensor);
       },
       "failed in the arguments of a call: all_reduce: "},
  });
}

// Of a device's thread torch lets nothing else escape: the process would end.
TEST_CASE("what is thrown need be no std::exception, and a hook need give no result" * on_host()) {
  check_quoted({
      {"hook that throws a number",
       [](const World& world) {
         DistributedDataParallel ddp(Careful(), world.group());
         ddp.register_comm_hook([](GradBucket& bucket, const ProcessGroup& group) {
           if (group.rank() == 1) throw 42;
           return all_reduce_hook()(bucket, group);
         });
         loss_of(ddp(wave({4, 6}, world.rank()))).backward();
       },
       "backward of DistributedDataParallel failed: the thrown object is not a std::exception"},
      {"backward that throws a number",
       [](const World& world) {
         Careful model;
         DistributedDataParallel ddp(model, world.group());
         const int rank = world.rank();
         model->last->bias.register_hook([rank](const at::Tensor&) {
           if (rank == 1) throw 42;
         });
         loss_of(ddp(wave({4, 6}, world.rank()))).backward();
       },
       "failed in backward of DistributedDataParallel: the thrown object is not a std::exception"},
      {"join that throws a number",
       [](const World& world) {
         const std::vector<int> batches(3);
         join(world.group(), batches, [&](int) {
           if (world.rank() == 1) throw 42;
           world.group().barrier();
         });
       },
       "the thrown object is not a std::exception"},
      {"hook without a result",
       [](const World& world) {
         DistributedDataParallel ddp(Careful(), world.group());
         ddp.register_comm_hook([](GradBucket& bucket, const ProcessGroup& group) {
           return group.rank() == 1 ? BucketResult() : all_reduce_hook()(bucket, group);
         });
         loss_of(ddp(wave({4, 6}, world.rank()))).backward();
       },
       "backward of DistributedDataParallel failed: the communication hook returned no function for bucket 0"},
  });
}

TEST_CASE("a rank that catches what its backward throws and goes on is told from the others with the cause") {
  for (const Over over : {Over::arena, Over::links}) {
    const auto errors = run_worlds(3, over, [](const World& world) {
      Careful model;
      DistributedDataParallel ddp(model, world.group());
      for (int step = 0; step < 4; ++step) {
        model->breaks = step == 2 && world.rank() == 1;
        at::Tensor loss = loss_of(ddp(wave({4, 6}, world.rank())));
        try {
          loss.backward();
        } catch (const Error&) {
          throw;
        } catch (const std::exception&) {  // skips the batch
        }
      }
    });
    for (const auto& error : errors) {
      const std::string text = error_in(error).what();
      CAPTURE(text);
      for (const char* part : {"gradient bucket 0 (", "last.weight", "first.bias", "of backward 3", "of backward 4"}) {
        CHECK(contains(text, part));
      }
      CHECK(contains(text, "before that, rank 1 failed in backward of DistributedDataParallel: the data of step 3"));
    }
  }
}

TEST_CASE("models of the same shapes that ranks call in different orders are not averaged with each other" *
          on_host()) {
  struct Variant {
    DdpOptions options;
    bool has_hook = false;
  };
  const Variant variants[] = {{.options = {}},
                              {.options = {}, .has_hook = true},
                              {.options = {.find_unused_parameters = true, .skip_all_reduce_unused_params = true}},
                              {.options = {.weighting = Weighting::samples}},
                              {.options = {.lockstep = {.shards = 2}}}};
  for (const Over over : {Over::arena, Over::links}) {
    for (const auto& [options, has_hook] : variants) {
      const auto errors = run_worlds(2, over, [&](const World& world) {
        DistributedDataParallel one(Careful(), world.group(), options), other(Careful(), world.group(), options);
        const auto step = [&](auto& ddp) {
          const auto backward = [&](const Shard&) {
            loss_of(ddp(wave({4, 6}, world.rank()))).backward();
            return 0.0;
          };
          if (options.lockstep.shards == 0) {
            backward({});
          } else {
            ddp.for_each_shard(backward);
          }
        };
        if (has_hook) {
          for (auto* ddp : {&one, &other}) ddp->register_comm_hook(all_reduce_hook());
        }
        for (auto* ddp : {&one, &other}) step(*ddp);
        for (auto* ddp : {&one, &other}) step(*(world.rank() == 0 ? ddp : ddp == &one ? &other : &one));
      });
      for (const auto& error : errors) CHECK_ERROR(error_in(error), ErrorKind::desync, "wrapper ");
    }
    const auto errors = run_worlds(2, over, [](const World& world) {
      using Net = DistributedDataParallel<torch::nn::BatchNorm1d>;
      Net one(torch::nn::BatchNorm1d(3), world.group()), other(torch::nn::BatchNorm1d(3), world.group());
      (world.rank() == 0 ? one : other).sync_buffers();
    });
    for (const auto& error : errors) CHECK_ERROR(error_in(error), ErrorKind::desync, "DDP buffers", "wrapper ");
  }
}

TEST_CASE("after a hook's result has failed the next backward tells why, whoever goes on") {
  const auto errors = run_worlds(2, Over::arena, [](const World& world) {
    DistributedDataParallel ddp(Careful(), world.group());
    ddp.register_comm_hook([](GradBucket& bucket, const ProcessGroup& group) -> BucketResult {
      const Work work = group.all_reduce_async(bucket.buffer());
      return [work, rank = group.rank()]() -> at::Tensor {
        work.wait();
        throw std::runtime_error("rank " + std::to_string(rank) + " cannot unpack it");
      };
    });
    const auto backward = [&] { loss_of(ddp(wave({4, 6}, world.rank()))).backward(); };
    CHECK_THROWS_AS(backward(), std::runtime_error);
    backward();
  });
  for (const auto& error : errors) CHECK_ERROR(error_in(error), ErrorKind::aborted, "cannot unpack it");
}

TEST_CASE("a wrapper without a module is refused") {
  const auto groups = local_groups(1, Over::arena, {});
  CHECK_ERROR(error_of([&] { DistributedDataParallel ddp(std::shared_ptr<CarefulImpl>(), groups[0]); }),
              ErrorKind::invalid_argument, "the module is null");
}

TEST_CASE("an exception that has been survived is not blamed for a later one") {
  const auto errors = run_worlds(2, Over::arena, [](const World& world) {
    DistributedDataParallel ddp(Careful(), world.group());
    CHECK_THROWS_AS(ddp(here(at::zeros({0, 6}))), std::exception);  // on all ranks
    loss_of(ddp(wave({4, 6}, world.rank()))).backward();
    if (world.rank() == 1) throw std::runtime_error("something else");
    world.group().barrier();
  });
  CHECK_ERROR(error_in(errors[0]), ErrorKind::aborted, "rank 1 ", "an exception ended its program");
}

// fault: 38
// feature: E-04
TEST_CASE("models that differ in anything are refused on all ranks at once, and the group goes on") {
  struct Variant {
    const char* what;
    std::function<void(torch::nn::Module&, bool odd)> build;
    const char* shown;
  };
  const auto parameter = [](torch::nn::Module& module, const char* name, at::IntArrayRef sizes, at::ScalarType dtype) {
    module.register_parameter(name, at::zeros(sizes, dtype));
  };
  const Variant variants[] = {
      {"name",
       [&](torch::nn::Module& m, bool odd) {
         parameter(m, odd ? "wait" : "weight", {2, 3}, at::kFloat);
       },
       "parameter wait [2, 3] Float"},
      {"order",
       [&](torch::nn::Module& m, bool odd) {
         parameter(m, odd ? "b" : "a", {2, 3}, at::kFloat);
         parameter(m, odd ? "a" : "b", {2, 3}, at::kFloat);
       },
       "parameter b [2, 3] Float"},
      {"dtype",
       [&](torch::nn::Module& m, bool odd) {
         parameter(m, "weight", {2, 3}, odd ? at::kDouble : at::kFloat);
       },
       "parameter weight [2, 3] Double"},
      {"shape",
       [&](torch::nn::Module& m, bool odd) {
         parameter(m, "weight", {odd ? 3 : 2, odd ? 2 : 3}, at::kFloat);
       },
       "parameter weight [3, 2] Float"},
      {"frozen",
       [&](torch::nn::Module& m, bool odd) {
         parameter(m, "weight", {2, 3}, at::kFloat);
         m.register_parameter("bias", at::zeros({3}), !odd);
       },
       "parameter bias [3] Float strides [1] frozen"},
      {"one more",
       [&](torch::nn::Module& m, bool odd) {
         parameter(m, "weight", {2, 3}, at::kFloat);
         if (odd) parameter(m, "bias", {3}, at::kFloat);
       },
       "parameter bias [3] Float"},
      {"buffer",
       [&](torch::nn::Module& m, bool odd) {
         parameter(m, "weight", {2, 3}, at::kFloat);
         m.register_buffer("mean", at::zeros({odd ? 4 : 3}));
       },
       "buffer mean [4] Float"},
  };
  struct Plain : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return x; }
  };
  for (const Variant& variant : variants) {
    for (const Over over : {Over::arena, Over::links}) {
      INFO(variant.what << (over == Over::arena ? " over the arena" : " over links"));
      run_group_or_throw(3, over, [&](const ProcessGroup& group) {
        const auto model = std::make_shared<Plain>();
        variant.build(*model, group.rank() == 2);
        const TimePoint start = steady_clock().now();
        CHECK_ERROR(error_of([&] { DistributedDataParallel ddp(model, group); }), ErrorKind::invalid_argument,
                    "the model of rank 2 differs from that of rank 0", variant.shown);
        CHECK(steady_clock().now() - start < std::chrono::seconds(1));
        group.barrier();
      });
    }
  }
}

// feature: E-10
TEST_CASE("a rank that alone calls its wrapper is told what it talks about, and what to do instead") {
  for (const Over over : {Over::arena, Over::links}) {
    const auto errors = run_group(2, over, [](const ProcessGroup& group) {
      torch::nn::Sequential model(torch::nn::Linear(6, 5), torch::nn::BatchNorm1d(5));
      move_here(*model);
      DistributedDataParallel ddp(model, group);
      if (group.rank() == 0) ddp(wave({4, 6}, 0));  // an evaluation without eval(), say
      group.barrier({.name = "end of epoch"});
    });
    CHECK_ERROR(error_in(errors[0]), ErrorKind::desync, "rank 0 in ", "DDP", "call its module() instead");
    CHECK_ERROR(error_in(errors[1]), ErrorKind::desync, "rank 1 in barrier", "end of epoch", "DDP");
  }
}

}  // namespace cause_test
