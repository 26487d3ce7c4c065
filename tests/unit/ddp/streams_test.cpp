// Training on random streams of a device: whatever waits for whatever, each rank gets what one process would, and no
// work misses a dependency. The device is the one that only tests have.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "lockstep/train/ddp/comm_hooks/default_hooks.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/optim/clip_gradients.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/fake_device.h"
#include "tests/unit/ddp/models.h"

namespace streams_test {

using namespace lockstep;
using namespace lockstep::testing;

namespace {

constexpr int kStreams = 3;  // that a program uses

struct MlpImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = at::tanh(first->forward(x));
    return uses_side ? last->forward(h) + side->forward(h) : last->forward(h);
  }
  bool uses_side = true;
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 5));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(5, 3));
  torch::nn::Linear side = register_module("side", torch::nn::Linear(5, 3));
};
TORCH_MODULE(Mlp);

// A rank's program, which waits where it should. Choices that all ranks must make alike come from `common`.
class Program {
 public:
  Program(const ProcessGroup& group, unsigned seed)
      : group_(group), common_(seed), own_(seed * 100 + static_cast<unsigned>(group.rank()) + 1) {
    set_weights(model_, 1);
    for (auto& parameter : model_->parameters()) weights_.push_back(parameter.detach().to(at::kCPU));
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < weights_.size(); ++i) alone_->parameters()[i].copy_(weights_[i]);
    wait_everywhere();
    DdpOptions options;
    options.bucket_cap_mb = pick(common_, 2) == 0 ? 1e-5 : 1;
    if (pick(common_, 4) == 0) options.bucketing = Bucketing::off;
    may_leave_out_ = pick(common_, 2) == 0;
    options.find_unused_parameters = may_leave_out_;
    options.static_graph = !may_leave_out_ && pick(common_, 3) == 0;
    if (pick(common_, 4) == 0) options.weighting = Weighting::samples;
    accumulates_ = options.weighting == Weighting::ranks;
    if (pick(common_, 4) == 0) options.non_finite = NonFinite::skip_step;
    clips_ = pick(common_, 3) == 0;
    run([&] { ddp_.emplace(model_, group, options); });
    if (pick(common_, 3) == 0) ddp_->register_comm_hook(all_reduce_hook());
    optimizer_.emplace(ddp_->parameters(), 0.5);
    reference_.emplace(alone_->parameters(), 0.5);
  }

  void step(int number) {
    const bool drops = pick(common_, 2) == 0;
    run([&] { optimizer_->zero_grad(drops); });
    reference_->zero_grad();
    const int batches = accumulates_ ? 1 + pick(common_, 2) : 1;  // of samples, it is the mean that counts
    for (int batch = 0; batch < batches; ++batch) {
      const bool uses_side = !may_leave_out_ || pick(common_, 3) != 0;
      model_->uses_side = alone_->uses_side = uses_side;
      std::unique_ptr<NoSync> alone;
      if (batch + 1 < batches) alone.reset(new NoSync(ddp_->no_sync()));
      backward(10 * number + batch);
      for (int rank = 0; rank < group_.size(); ++rank) {
        (loss_of(alone_->forward(host_batch(10 * number + batch, rank))) / group_.size()).backward();
      }
    }
    run([&] {
      if (clips_) clip_grad_norm(ddp_->parameters(), 0.01);
      optimizer_->step();
    });
    if (clips_) clip_grad_norm(alone_->parameters(), 0.01);
    reference_->step();
  }

  void check() {
    const auto found = model_->parameters(), expected = alone_->parameters();
    for (std::size_t i = 0; i < found.size(); ++i) {
      CAPTURE(i);
      CHECK(at::allclose(found[i].to(at::kCPU), expected[i], 1e-4, 1e-6));
    }
  }

 private:
  static int pick(std::mt19937& random, int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); }
  static at::Tensor loss_of(const at::Tensor& y) { return (y - 1).square().mean(); }
  static at::Tensor host_batch(int number, int rank) { return wave({3, 6}, 7 * number + rank).to(at::kCPU); }

  // On a stream of the program's, for which all of them wait afterwards.
  template <class Part>
  void run(Part&& part) {
    const c10::StreamGuard guard(fake_stream(device_, pick(own_, kStreams)));
    part();
    wait_everywhere();
  }
  void wait_everywhere() {
    c10::Event event(at::kPrivateUse1);
    event.record(c10::impl::VirtualGuardImpl(at::kPrivateUse1).getStream(device_));
    for (int i = 0; i < kStreams; ++i) event.block(fake_stream(device_, i));
  }

  // The forward on one stream, the backward on another.
  void backward(int number) {
    at::Tensor x, loss;
    run([&] {
      x = wave({3, 6}, 7 * number + group_.rank());
      loss = loss_of((*ddp_)(x));
    });
    run([&] { loss.backward(); });
  }

  const ProcessGroup& group_;
  const at::Device device_ = test_device();
  std::mt19937 common_, own_;
  Mlp model_, alone_;
  std::vector<at::Tensor> weights_;
  bool may_leave_out_ = false, clips_ = false, accumulates_ = true;
  std::optional<DistributedDataParallel<Mlp>> ddp_;
  std::optional<torch::optim::SGD> optimizer_, reference_;
};

std::vector<std::string> races_of(const std::function<void(DistributedDataParallel<Mlp>&, c10::Stream)>& train) {
  const CapturedRaces captured;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Mlp model;
    set_weights(model, 1);
    DistributedDataParallel ddp(model, group);
    train(ddp, fake_stream(test_device(), 1));
    fake_stream(test_device(), 1).synchronize();
  });
  return CapturedRaces::take();
}

}  // namespace

TEST_CASE("a hook whose result is computed on another stream, and a program that does not wait, are found") {
  const auto backward = [](auto& ddp) { ddp(wave({3, 6}, 1)).sum().backward(); };
  CHECK(races_of([&](auto& ddp, c10::Stream) { backward(ddp); }).empty());
  CHECK_FALSE(races_of([&](auto& ddp, c10::Stream side) {
                ddp.register_comm_hook([side](const GradBucket& bucket, const ProcessGroup&) -> BucketResult {
                  const c10::StreamGuard guard(side);
                  const at::Tensor halved = bucket.buffer() / 2;
                  return [halved] { return halved; };
                });
                backward(ddp);
              }).empty());
  CHECK_FALSE(races_of([&](auto& ddp, c10::Stream side) {
                backward(ddp);
                const c10::StreamGuard guard(side);
                torch::optim::SGD(ddp.parameters(), 0.1).step();
              }).empty());
}

TEST_CASE("in a step the host waits for the device only for the copies of its buckets") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Mlp model;
    set_weights(model, 1);
    DistributedDataParallel ddp(model, group, {.bucketing = Bucketing::off, .compare_parameters_every = 0});
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    std::int64_t waits = 0;
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = wave({3, 6}, step + group.rank());
      group.barrier();
      const std::int64_t before = fake_device_synchronizations();
      group.barrier();
      optimizer.zero_grad();
      ddp(x).square().sum().backward();
      optimizer.step();
      group.barrier();
      waits = fake_device_synchronizations() - before;
      group.barrier();
    }
    CHECK(waits == 2 * 6);  // 2 ranks, 6 parameters
  });
}

// feature: L-05
TEST_CASE("in a step over a communicator the host never waits for the device") {
  const WithFakeCommunicators with;
  struct Way {
    std::string name;
    DdpOptions options = {};
    bool hooks = false, accumulates = false, keeps_gradients = false;
    int waits = 0;  // of the host, in each step
  };
  const std::vector<Way> ways{
      {"by default"},
      {"small buckets", {.bucket_cap_mb = 1e-5}},
      {"unused parameters", {.find_unused_parameters = true}},
      {"static graph", {.static_graph = true}},
      {"bfloat16", {.mixed_precision = {.param_dtype = at::kBFloat16}}},
      {"reduced as bfloat16", {.mixed_precision = {.reduce_dtype = at::kBFloat16}}},
      {.name = "a hook", .hooks = true},
      {.name = "accumulation", .accumulates = true},
      {.name = "gradients set to zero", .accumulates = true, .keeps_gradients = true},
      {.name = "gradients are checked", .options = {.non_finite = NonFinite::skip_step}, .waits = 1},
  };
  for (const Over transport : kTransports) {
    for (const Way& way : ways) {
      CAPTURE(way.name);
      run_group_or_throw(2, transport, [&](const ProcessGroup& group) {
        Net model;
        set_weights(model, 1);
        DdpOptions options = way.options;
        options.compare_parameters_every = 0;  // for which the host waits once
        DistributedDataParallel ddp(model, group, options);
        if (way.hooks) ddp.register_comm_hook(all_reduce_hook());
        torch::optim::SGD optimizer(ddp.parameters(), 0.1);
        for (int step = 0; step < 5; ++step) {
          const at::Tensor x = wave({3, 20}, step + group.rank());
          group.barrier();
          const std::int64_t before = fake_device_synchronizations();
          group.barrier();
          optimizer.zero_grad(!way.keeps_gradients);
          if (way.accumulates) {
            const auto local = ddp.no_sync();
            ddp(x).square().sum().backward();
          }
          ddp(x).square().sum().backward();
          std::vector<at::Tensor> gradients;
          for (const auto& parameter : ddp.parameters()) gradients.push_back(parameter.grad());
          clip_grads_with_norm(ddp.parameters(), 1.0, get_total_norm(gradients));
          optimizer.step();
          // The first steps compare the models, and learn the order of gradients.
          group.barrier();
          if (step >= 2) CHECK(fake_device_synchronizations() == before + group.size() * way.waits);
          group.barrier();
        }
      });
    }
  }
}

TEST_CASE("a device's gradients lie in their bucket, and old ones keep their values") {
  const WithFakeCommunicators with;
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Mlp model;
    set_weights(model, 1);
    DistributedDataParallel ddp(model, group);
    const auto step = [&](int number) {
      ddp.zero_grad();
      ddp(wave({3, 6}, number)).sum().backward();
    };
    step(0);
    step(1);
    const void* const first = model->last->weight.grad().storage().data();
    CHECK(model->side->weight.grad().storage().data() == first);
    step(2);
    CHECK(model->last->weight.grad().storage().data() == first);  // nobody had them any more
    const at::Tensor kept = model->last->weight.grad(), copy = kept.to(at::kCPU);
    step(3);
    step(4);
    CHECK(at::equal(kept.to(at::kCPU), copy));
    CHECK_FALSE(at::equal(model->last->weight.grad().to(at::kCPU), copy));
  });
}

TEST_CASE("a device's gradients that no rank used, or that the program has swapped, keep their values") {
  const WithFakeCommunicators with;
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    Mlp model;
    set_weights(model, 1);
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    const auto backward = [&](int number) { ddp(wave({3, 6}, number + group.rank())).sum().backward(); };
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      backward(i);
    }
    at::Tensor& side = model->side->weight.mutable_grad();
    at::Tensor& last = model->last->weight.mutable_grad();
    {
      const at::NoGradGuard no_grad;
      side.fill_(group.rank() + 1);
      last.fill_(100);
    }
    std::swap(side, last);
    model->uses_side = false;
    backward(5);
    CHECK(at::equal(side.to(at::kCPU), at::full({3, 5}, 100.0F)));
    CHECK((last.to(at::kCPU) - 1.5).abs().max().item<double>() < 50);  // the mean of 1 and 2, and the new gradient
    const at::Tensor kept = side.to(at::kCPU);
    backward(6);
    CHECK(at::equal(side.to(at::kCPU), kept));
  });
}

TEST_CASE("random programs on random streams train as one process does, and every dependency is waited for") {
  for (const Over transport : kTransports) {
    for (unsigned seed = 0; seed < LOCKSTEP_PROGRAMS; ++seed) {
      CAPTURE(seed);
      std::optional<WithFakeCommunicators> with;
      if (seed % 4 != 0) with.emplace();
      run_group_or_throw(2, transport, [&](const ProcessGroup& group) {
        Program program(group, seed);
        for (int step = 0; step < 5; ++step) program.step(step);
        program.check();
      });
    }
  }
}

}  // namespace streams_test
