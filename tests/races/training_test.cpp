// Trainings of two ranks that are processes: what the threads of one rank, its own and the group's, do to each other.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <torch/csrc/autograd/custom_function.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/group/world.h"
#include "lockstep/train/ddp/comm_hooks/default_hooks.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/ddp/uneven_inputs/join.h"
#include "lockstep/train/nn/convert_sync_batchnorm.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/ddp/models.h"

namespace training_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

constexpr int kRanks = 2;

using Body = std::function<void(const World&)>;

// In a child of its own; a report of the sanitizer ends it as a failed CHECK or an exception does.
[[noreturn]] void run_rank(InitOptions options, int rank, const Body& body) {
  options.rank = rank;
  try {
    const World world = init_process_group(options);
    body(world);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    std::_Exit(1);
  }
  std::_Exit(0);
}

void run_processes(const std::string& transport, const Body& body) {
  const TemporaryDirectory folder;
  InitOptions options;
  options.init_method = "file://" + folder / "store";
  options.world_size = kRanks;
  options.token = Token::generate();
  options.transport = transport;
  options.timeout = std::chrono::seconds(60);
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) run_rank(options, rank, body);
    ranks.push_back(pid);
  }
  for (const pid_t rank : ranks) {
    int status = 0;
    ::waitpid(rank, &status, 0);
    CHECK(status == 0);
  }
}

void on_both_transports(const Body& body) {
  for (const char* transport : {"shared_memory", "tcp"}) run_processes(transport, body);
}

void require(bool fine, const char* what) {
  if (!fine) throw std::runtime_error(what);
}

at::Tensor loss_of(const at::Tensor& y) { return y.square().mean(); }

void descend(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) parameter.sub_(parameter.grad(), 0.1);
}

struct ThrowsInBackward : torch::autograd::Function<ThrowsInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("the data of step 1 are damaged");
  }
};

}  // namespace

TEST_CASE("the reducer, with small and large buckets and with hooks") {
  on_both_transports([](const World& world) {
    for (const bool hooked : {false, true}) {
      Net model;
      set_weights(model, 1);
      DistributedDataParallel ddp(model, world.group(), {.bucket_cap_mb = 0.01, .compare_parameters_every = 1});
      if (hooked) {
        ddp.register_comm_hook([](GradBucket& bucket, const ProcessGroup& group) -> BucketResult {
          const at::Tensor mean = bucket.buffer() / group.size();
          return [mean, work = group.all_reduce_async(mean)] {
            work.wait();
            return mean;
          };
        });
      }
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        loss_of(ddp(wave({6, 20}, world.rank() * 10 + step))).backward();
        descend(ddp.parameters());
      }
      for (const auto& parameter : ddp.parameters()) require(same_on_all_ranks(world.group(), parameter), "they drift");
    }
  });
}

TEST_CASE("lockstep mode, with shards that meet in a synchronised batch norm") {
  on_both_transports([](const World& world) {
    Net model(64);
    set_weights(model, 1);
    convert_sync_batchnorm(model, world.group());
    DistributedDataParallel ddp(model, world.group(), {.lockstep = {.shards = 4, .seed = 7}});
    for (int step = 0; step < 2; ++step) {
      ddp.for_each_shard([&](const Shard& shard) {
        const at::Tensor loss = loss_of(ddp(wave({4, 20}, shard.index + step)));
        loss.backward();
        return loss.item<double>();
      });
      descend(ddp.parameters());
    }
    for (const auto& parameter : ddp.parameters()) require(same_on_all_ranks(world.group(), parameter), "they drift");
  });
}

TEST_CASE("uneven inputs, and compressed gradients") {
  on_both_transports([](const World& world) {
    Net model(64);
    set_weights(model, 1);
    DistributedDataParallel ddp(model, world.group());
    ddp.register_comm_hook(fp16_compress_hook());
    std::vector<at::Tensor> batches;
    for (int i = 0; i <= world.rank(); ++i) batches.push_back(wave({3, 20}, i));
    const JoinReport report = join(world.group(), batches, [&](const at::Tensor& x) {
      ddp.zero_grad();
      loss_of(ddp(x)).backward();
      descend(ddp.parameters());
    });
    require(report.steps + report.joined_steps == kRanks, "too few steps");
  });
}

TEST_CASE("a backward that fails on one rank") {
  on_both_transports([](const World& world) {
    Net model(64);
    set_weights(model, 1);
    DistributedDataParallel ddp(model, world.group());
    std::string text;
    try {
      for (int step = 0; step < 3; ++step) {
        at::Tensor loss = loss_of(ddp(wave({4, 20}, world.rank())));
        if (step == 1 && world.rank() == 1) {
          loss = ThrowsInBackward::apply(loss);
        }
        loss.backward();
      }
    } catch (const std::exception& error) {
      text = error.what();
      world.group().abort(text);
    }
    require(text.find("the data of step 1 are damaged") != std::string::npos, text.c_str());
  });
}

TEST_CASE("calls of several threads, messages, and a group that is ended") {
  on_both_transports([](const World& world) {
    const ProcessGroup& group = world.group();
    {
      const at::Tensor slow = at::ones({300'000}), fast = at::ones({10});
      const Work first = group.all_reduce_async(slow), second = group.all_reduce_async(fast);
      const at::Tensor got = at::zeros({5000});
      const Work received = group.recv_async(got, 1 - group.rank());
      std::thread sender([&] { group.send(at::full({5000}, 1.0 * group.rank()), 1 - group.rank()); });
      second.wait();
      first.wait();
      received.wait();
      sender.join();
      require(got[0].item<double>() == 1 - group.rank() && fast[0].item<double>() == kRanks, "wrong data");
    }
    const Work endless = group.recv_async(at::zeros({1}), 1 - group.rank(), 77);
    const at::Tensor word = at::zeros({1});
    Work told;
    if (group.rank() == 0) {
      group.recv(word, 1, 5);
      std::thread([&] { group.abort("enough"); }).join();
    } else {
      told = group.send_async(word, 0, 5);  // the end of the group may come before its own
    }
    try {
      endless.wait();
      require(false, "a message without a sender has come");
    } catch (const Error& error) {
      require(error.kind() == ErrorKind::aborted, error.what());
    }
  });
}

}  // namespace training_test
