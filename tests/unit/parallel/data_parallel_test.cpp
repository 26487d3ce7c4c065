#include "lockstep/train/parallel/data_parallel.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <barrier>
#include <stdexcept>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/nn/convert_sync_batchnorm.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"

namespace data_parallel_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

// Two layers, of which the second may be frozen, and something to go wrong.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { NetImpl::reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 3));
    calls = register_buffer("calls", at::zeros({}, at::kLong));
  }
  at::Tensor forward(const at::Tensor& x) {
    calls += 1;
    if (x.numel() != 0 && x[0][0].item<float>() > 100) throw std::runtime_error("too large");
    return second->forward(at::tanh(first->forward(x)));
  }
  torch::nn::Linear first = nullptr, second = nullptr;
  at::Tensor calls;
};
TORCH_MODULE(Net);

// As most modules are written: it cannot be cloned.
struct PlainImpl : torch::nn::Module {
  PlainImpl() : layer(register_module("layer", torch::nn::Linear(6, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x); }
  torch::nn::Linear layer;
};
TORCH_MODULE(Plain);

// The mean of its part: a number.
struct MeanImpl : torch::nn::Cloneable<MeanImpl> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& x) { return x.mean(); }
};
TORCH_MODULE(Mean);

at::Tensor wave(at::IntArrayRef sizes, double shift = 0) {
  return at::sin(at::arange(c10::multiply_integers(sizes), at::kFloat) * 0.37 + shift).reshape(sizes);
}

std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : module.parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

void check_close(const at::Tensor& found, const at::Tensor& expected) {
  REQUIRE(found.defined() == expected.defined());
  if (!found.defined()) return;
  REQUIRE(found.sizes() == expected.sizes());
  CHECK(at::allclose(found, expected, 1e-6, 1e-6));
}

}  // namespace

// feature: M-06
TEST_CASE("outputs and gradients are those of the module itself, for any number of replicas and size of batch") {
  for (const int replicas : {1, 2, 3, 4}) {
    for (const std::int64_t samples : {1, 2, 3, 6, 9, 16}) {
      Net net;
      DataParallel parallel(net, {.replicas = replicas});
      const at::Tensor x = wave({samples, 6}).requires_grad_();
      const at::Tensor expected = net(x);
      expected.square().sum().backward();
      const at::Tensor input_gradient = x.grad().clone();
      const auto gradients = gradients_of(*net);
      net->zero_grad();
      x.mutable_grad().reset();

      const at::Tensor output = parallel(x);
      check_close(output, expected);
      output.square().sum().backward();
      check_close(x.grad(), input_gradient);
      for (std::size_t i = 0; i < gradients.size(); ++i) check_close(gradients_of(*net)[i], gradients[i]);
    }
  }
}

TEST_CASE("training with it is training, also when a graph outlives its step") {
  Net net;
  Net reference = std::dynamic_pointer_cast<NetImpl>(net->clone());
  DataParallel parallel(net, {.replicas = 3});
  torch::optim::SGD ours(net->parameters(), 0.1), plain(reference->parameters(), 0.1);
  at::Tensor loss;
  for (int step = 0; step < 5; ++step) {
    const at::Tensor x = wave({7, 6}, step);
    ours.zero_grad();
    plain.zero_grad();
    loss = (parallel(x) + parallel(x * 2)).square().mean();  // two forwards before one backward
    loss.backward();
    (reference(x) + reference(x * 2)).square().mean().backward();
    ours.step();
    plain.step();
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    check_close(net->parameters()[i], reference->parameters()[i]);
  }
}

// feature: M-06
TEST_CASE("replicas compute in several threads, if torch may use them") {
  struct WhoImpl : torch::nn::Module {
    static std::barrier<>& both_are_here() {
      static std::barrier<> barrier(2);
      return barrier;
    }
    at::Tensor forward(const at::Tensor& x) {
      both_are_here().arrive_and_wait();
      const auto id = static_cast<std::int64_t>(std::hash<std::thread::id>()(std::this_thread::get_id()) >> 1);
      return at::full({x.size(0)}, id, at::kLong);
    }
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  DataParallel parallel(std::make_shared<WhoImpl>(), {.replicas = 2}, [] { return std::make_shared<WhoImpl>(); });
  const at::Tensor output = parallel(at::zeros({2, 6}));
  CHECK(output[0].item<std::int64_t>() != output[1].item<std::int64_t>());
  CHECK(at::get_num_threads() == 2);
  at::set_num_threads(threads);
}

TEST_CASE("gradients add to those that are there; frozen parameters get none; without gradients nothing is recorded") {
  Net net;
  net->second->weight.set_requires_grad(false);
  DataParallel parallel(net, {.replicas = 2});
  const at::Tensor x = wave({4, 6});
  parallel(x).sum().backward();
  const at::Tensor once = net->first->weight.grad().clone();
  parallel(x).sum().backward();
  check_close(net->first->weight.grad(), 2 * once);
  CHECK_FALSE(net->second->weight.grad().defined());
  net->second->weight.set_requires_grad(true);
  parallel(x).sum().backward();
  CHECK(net->second->weight.grad().defined());
  const at::NoGradGuard no_grad;
  CHECK_FALSE(parallel(x).requires_grad());
}

TEST_CASE("the graph can be used twice where that is asked for, and not otherwise") {
  Net net;
  DataParallel parallel(net, {.replicas = 2});
  const at::Tensor loss = parallel(wave({4, 6})).sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = net->first->weight.grad().clone();
  loss.backward();
  check_close(net->first->weight.grad(), 2 * once);
  CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("second time"), c10::Error);
}

TEST_CASE("parameters that change between forward and backward are noticed") {
  Net net;
  DataParallel parallel(net, {.replicas = 2});
  const at::Tensor loss = parallel(wave({4, 6})).sum();
  {
    const at::NoGradGuard no_grad;
    net->first->weight.mul_(2);
  }
  CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("modified by an inplace operation"), c10::Error);
}

TEST_CASE("gradients of gradients are refused") {
  Net net;
  DataParallel parallel(net);
  const at::Tensor loss = parallel(wave({4, 6})).sum();
  const auto twice = [&] {
    return torch::autograd::grad({loss}, {net->first->weight}, {}, std::nullopt, /*create_graph=*/true);
  };
  CHECK_ERROR(error_of([&] { (void)twice(); }), ErrorKind::invalid_argument,
              "DataParallel: second derivatives are not supported");
}

TEST_CASE("what forward does to buffers stays if the first replica does it, and the training flag reaches all") {
  Net net;
  DataParallel parallel(net, {.replicas = 4});
  for (int step = 0; step < 3; ++step) (void)parallel(wave({8, 6}));
  CHECK(net->calls.item<std::int64_t>() == 3);

  torch::nn::BatchNorm1d norm(6), reference(6);
  DataParallel normed(norm, {.replicas = 2});
  const at::Tensor x = wave({8, 6});
  check_close(normed(x), at::cat({reference(x.narrow(0, 0, 4)), reference(x.narrow(0, 4, 4))}));
  check_close(norm->running_mean, x.narrow(0, 0, 4).mean(0) * 0.1);
  norm->eval();
  check_close(normed(x), norm(x));
}

TEST_CASE("another dimension; numbers become a vector; empty batches") {
  Mean mean;
  DataParallel means(mean, {.replicas = 2});
  check_close(means(at::arange(4, at::kFloat)), at::tensor({0.5F, 2.5F}));

  struct ScaleImpl : torch::nn::Cloneable<ScaleImpl> {
    ScaleImpl() { ScaleImpl::reset(); }
    void reset() override { weight = register_parameter("weight", at::ones({3, 1})); }
    at::Tensor forward(const at::Tensor& x) { return x * weight; }
    at::Tensor weight;
  };
  const auto scale = std::make_shared<ScaleImpl>();
  const at::Tensor x = wave({3, 7});
  const at::Tensor output = DataParallel(scale, {.replicas = 4, .dim = 1})(x);
  check_close(output, x);
  output.sum().backward();
  check_close(scale->weight.grad(), x.sum(1, true));

  Net net;
  CHECK(data_parallel(net, at::zeros({0, 6}), {.replicas = 4}).sizes() == at::IntArrayRef({0, 3}));
}

// feature: M-06
TEST_CASE("an error in one replica surfaces with its number, from forward and from backward") {
  Net net;
  DataParallel parallel(net, {.replicas = 4});
  at::Tensor x = wave({8, 6});
  x[5][0] = 1000;
  (void)parallel(x);  // not the first of its part
  x[4][0] = 1000;
  x[6][0] = 1000;
  const Error error = error_of([&] { (void)parallel(x); });
  CHECK_ERROR(error, ErrorKind::invalid_argument, "DataParallel: forward of replica 2 of 4 failed: too large");
  try {
    (void)parallel(x);
  } catch (const Error& outer) {
    CHECK_THROWS_WITH_AS(std::rethrow_if_nested(outer), "too large", std::runtime_error);
  }
  CHECK_ERROR(error_of([&] {
                (void)parallel(wave({8, 5}));
              }),
              ErrorKind::invalid_argument, "forward of replica 0 of 4 failed",
              "mat1 and mat2 shapes cannot be multiplied");
  (void)parallel(wave({8, 6}));  // and afterwards it works

  struct TrapImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      at::Tensor y = x * 2;
      if (x[0][0].item<float>() > 100) y.register_hook([](const at::Tensor&) { throw std::runtime_error("a trap"); });
      return y;
    }
  };
  DataParallel trapped(std::make_shared<TrapImpl>(), {.replicas = 4}, [] { return std::make_shared<TrapImpl>(); });
  const at::Tensor output = trapped(x.requires_grad_());
  CHECK_ERROR(error_of([&] { output.sum().backward(); }), ErrorKind::invalid_argument,
              "DataParallel: backward of replica 2 of 4 failed: a trap");
}

TEST_CASE("modules that cannot be cloned need something that makes them") {
  Plain plain;
  DataParallel cloned(plain);
  CHECK_THROWS_WITH_AS((void)cloned(wave({4, 6})), doctest::Contains("clone() has not been implemented"), c10::Error);
  DataParallel made(plain, {.replicas = 3}, [] { return Plain(); });
  check_close(made(wave({4, 6})), plain(wave({4, 6})));
  DataParallel same(plain, {.replicas = 3}, [plain] { return plain; });
  CHECK_ERROR(error_of([&] {
                (void)same(wave({4, 6}));
              }),
              ErrorKind::invalid_argument, "`make` returned the module itself");
  torch::nn::Linear narrow(6, 3);
  DataParallel other(narrow, {.replicas = 3}, [] { return torch::nn::Linear(6, 4); });
  CHECK_ERROR(error_of([&] {
                (void)other(wave({4, 6}));
              }),
              ErrorKind::invalid_argument, "`make` returned a module of another structure");
}

TEST_CASE("replicas do not disturb the program's random numbers") {
  Net net;
  at::manual_seed(3);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(3);
  (void)data_parallel(net, wave({4, 6}), {.replicas = 4});
  CHECK(at::equal(at::rand({4}), expected));
}

// feature: M-08, Z-19
TEST_CASE("a module on several devices, and batches and options without sense, are refused") {
  Net net;
  DataParallel parallel(net);
  net->register_parameter("elsewhere", at::zeros({2}, at::kMeta));
  CHECK_ERROR(error_of([&] {
                (void)parallel(wave({4, 6}));
              }),
              ErrorKind::invalid_argument, "the module lies on several devices (cpu, meta)",
              "Use DistributedDataParallel");
  CHECK_ERROR(error_of([&] { DataParallel another(net); }), ErrorKind::invalid_argument, "several devices");
  Net whole;
  CHECK_ERROR(error_of([&] {
                (void)DataParallel(whole, {.replicas = 0})(wave({4, 6}));
              }),
              ErrorKind::invalid_argument, "replicas is 0");
  CHECK_ERROR(error_of([&] {
                (void)DataParallel(whole, {.dim = 2})(wave({4, 6}));
              }),
              ErrorKind::invalid_argument, "a batch of shape [4, 6] cannot be cut along dimension 2");
}

TEST_CASE("synchronised batch norm is refused") {
  torch::nn::Sequential net(torch::nn::Linear(6, 6), torch::nn::BatchNorm1d(6));
  DataParallel parallel(net, {.replicas = 2});
  const auto groups = testing::local_groups(2);
  convert_sync_batchnorm(net, groups[0]);
  CHECK_ERROR(error_of([&] {
                (void)parallel(wave({4, 6}));
              }),
              ErrorKind::invalid_argument, "DataParallel: 1 is a synchronised batch norm",
              "Use DistributedDataParallel, or a plain batch norm");
}

// feature: M-07
TEST_CASE("it says what it copied") {
  Net net;
  DataParallel parallel(net, {.replicas = 4});
  (void)parallel(wave({8, 6}));
  const DataParallelStats& stats = parallel.stats();
  CHECK(stats.forwards == 1);
  CHECK(stats.replicated_bytes == 3 * 8);
  CHECK(stats.gathered_bytes == 8 * 3 * 4);
  CHECK(stats.added_bytes == 4 * (6 * 8 + 8 + 8 * 3 + 3) * 4);
}

}  // namespace data_parallel_test
