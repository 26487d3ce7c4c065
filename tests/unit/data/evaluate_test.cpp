#include "lockstep/train/data/evaluate.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>

#include "lockstep/train/ddp/backward_in_parts.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/ddp/lockstep_mode/thread_count.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"

namespace evaluate_test {

using namespace lockstep;
using namespace lockstep::testing;

namespace {

struct Lines {
  std::size_t count = 11;
  std::size_t size() const { return count; }
  std::pair<at::Tensor, at::Tensor> get_batch(std::span<const std::int64_t> indices) const {
    const at::Tensor x = at::empty({static_cast<std::int64_t>(indices.size()), 1});
    for (std::size_t i = 0; i < indices.size(); ++i) x[static_cast<std::int64_t>(i)] = static_cast<double>(indices[i]);
    return {x, 2 * x};
  }
};

struct Unreadable : Lines {
  bool is_unreadable = false;
  ErrorKind kind = ErrorKind::internal;
  std::pair<at::Tensor, at::Tensor> get_batch(std::span<const std::int64_t> indices) const {
    if (is_unreadable) throw Error(kind, "no such image");
    return Lines::get_batch(indices);
  }
};

struct Normed : torch::nn::Module {
  Normed() {
    register_module("norm", layers.first);
    register_module("linear", layers.second);
  }
  at::Tensor forward(const at::Tensor& x) { return layers.second(layers.first(x)); }

  std::pair<torch::nn::BatchNorm1d, torch::nn::Linear> layers{1, torch::nn::LinearOptions(1, 1)};
};

std::array<double, 2> error_and_one(const at::Tensor& output, const at::Tensor& y) {
  return {(output - y).abs().mean().item<double>(), 1.0};
}

}  // namespace

// feature: F-06, G-04, Z-06
TEST_CASE("means over a test set are the same on all ranks, and at any number of them") {
  for (const int ranks : {1, 2, 3}) {
    run_group_or_throw(ranks, Over::arena, [](const ProcessGroup& group) {
      const Lines lines;
      torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
      {
        const at::NoGradGuard no_grad;
        model->weight.fill_(3);
      }
      const auto [error, one] = evaluate(model, lines, group, {.batch_size = 2}, error_and_one);
      CHECK(error == doctest::Approx(5).epsilon(1e-7));  // the mean of 0 to 10
      CHECK(one == 1);
      CHECK(model->is_training());
      DistributedDataParallel ddp(model, group);
      CHECK(evaluate(ddp, lines, group, {.batch_size = 3}, error_and_one)[0] == doctest::Approx(5));
    });
  }
}

TEST_CASE("parameters that differ between ranks have no mean of all, unless they may differ") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    for (const int every : {100, 0}) {
      torch::nn::Linear model(1, 1);
      DistributedDataParallel ddp(model, group, {.compare_parameters_every = every});
      {
        const at::NoGradGuard no_grad;
        model->bias += group.rank();
      }
      const auto evaluate_it = [&] { return evaluate(ddp, Lines(), group, {.batch_size = 2}, error_and_one); };
      if (every == 0) {
        CHECK(evaluate_it()[1] == 1);
      } else {
        CHECK_ERROR(error_of(evaluate_it), ErrorKind::desync, "First: bias, where rank 0 has other values than rank 1");
      }
    }
  });
}

TEST_CASE("means have the same bits at any number of ranks, if batches are of equal sizes") {
  std::array<double, 2> alone{};
  torch::nn::Linear model(1, 1);
  for (const int ranks : {1, 2, 3, 4}) {
    run_group_or_throw(ranks, Over::arena, [&](const ProcessGroup& group) {
      const auto metrics = [](const at::Tensor& output, const at::Tensor& y) -> std::array<double, 2> {
        return {(output - y).square().mean().item<double>(), output.exp().mean().item<double>()};
      };
      torch::nn::Linear own(std::dynamic_pointer_cast<torch::nn::LinearImpl>(model->clone()));
      const auto means = evaluate(own, Lines{23}, group, {.batch_size = 3}, metrics);
      if (ranks == 1) alone = means;
      CHECK(means == alone);
    });
  }
}

TEST_CASE("ranks that would leave out samples, or count some twice, are refused before the first forward") {
  run_group_or_throw(3, Over::arena, [](const ProcessGroup& group) {
    torch::nn::Linear model(1, 1);
    const bool is_other = group.rank() == 1;
    const auto check_refused = [&](std::size_t samples, const LoaderOptions& options, const std::string& text) {
      const auto metrics = [](const at::Tensor&, const at::Tensor&) -> std::array<double, 1> {
        throw std::runtime_error("a forward was made");
      };
      CHECK_ERROR(error_of([&] { evaluate(model, Lines{samples}, group, options, metrics); }),
                  ErrorKind::invalid_argument, "evaluate: " + text);
    };
    check_refused(100, {.batch_size = is_other ? 70U : 60U},
                  "ranks differ in batch_size: from 60 to 70, on this rank " + std::string(is_other ? "70" : "60"));
    check_refused(is_other ? 99 : 100, {.batch_size = 60}, "ranks differ in samples of the data set: from 99 to 100");
    check_refused(is_other ? 0 : 9, {}, is_other ? "the data set has no samples" : "another rank rejected");
    check_refused(9, {.drop_last = is_other}, is_other ? "drop_last leaves out samples" : "another rank rejected");
    check_refused(9, {.batch_size = is_other ? 0U : 1U},
                  is_other ? "batch_size is 0; give 1 or more" : "another rank rejected");
    CHECK(evaluate(model, Lines(), group, {.batch_size = 2}, error_and_one)[1] == 1);  // the group goes on
  });
}

TEST_CASE("a batch may be larger than the data set, by whatever") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    torch::nn::Linear model(1, 1);
    const auto whole = evaluate(model, Lines(), group, {.batch_size = 11}, error_and_one);
    for (const std::size_t batch_size : {std::size_t{12}, SIZE_MAX / 2 + 1, SIZE_MAX - 5, SIZE_MAX}) {
      CHECK(evaluate(model, Lines(), group, {.batch_size = batch_size}, error_and_one) == whole);
    }
  });
}

TEST_CASE("what a metric throws, the ranks that wait for it tell") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    torch::nn::Linear model(1, 1);
    const bool fails = group.rank() == 1;
    const auto metrics = [&](const at::Tensor&, const at::Tensor&) -> std::array<double, 1> {
      if (fails) throw std::runtime_error("no metric of this");
      return {1};
    };
    const auto call = [&] { evaluate(model, Lines(), group, {.batch_size = 2}, metrics); };
    if (fails) CHECK_THROWS_AS(call(), std::runtime_error);
    const Error error = fails ? error_of([&] { group.barrier(); }) : error_of(call);
    CHECK_ERROR(error, ErrorKind::desync, "evaluate: no metric of this");
  });
}

TEST_CASE("what a data set throws, the ranks that wait for it tell") {
  for (const ErrorKind kind : {ErrorKind::internal, ErrorKind::corrupt_data, ErrorKind::invalid_argument}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      torch::nn::Linear model(1, 1);
      const bool fails = group.rank() == 1;
      const Unreadable dataset{{}, fails, kind};
      const auto call = [&] { evaluate(model, dataset, group, {.batch_size = 2}, error_and_one); };
      if (fails) CHECK_ERROR(error_of(call), kind, "no such image");
      const Error error = fails ? error_of([&] { group.barrier(); }) : error_of(call);
      CHECK_ERROR(error, ErrorKind::desync, "evaluate: loader: batch ", "no such image");
    });
  }
}

TEST_CASE("in lockstep mode metrics are computed with the threads of a shard") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    torch::nn::Linear model(1, 1);
    const ThreadCount many(3);
    DistributedDataParallel ddp(model, group, {.lockstep = {.shards = 2, .threads = 1}});
    const auto threads = [](const at::Tensor&, const at::Tensor&) {
      return std::array{static_cast<double>(at::get_num_threads())};
    };
    CHECK(evaluate(ddp, Lines(), group, {}, threads)[0] == 1);
    CHECK(at::get_num_threads() == 3);
  });
}

TEST_CASE("all ranks evaluate with rank 0's buffers, also after forwards that did not give them") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto model = std::make_shared<Normed>();
    DistributedDataParallel ddp(model, group);
    const auto means_of_buffers = [&](const at::Tensor& output, const at::Tensor&) {
      return std::array{model->layers.first->running_mean.item<double>() + 0 * output.sum().item<double>()};
    };
    const auto check_evaluation = [&] {
      double expected = model->layers.first->running_mean.item<double>();
      at::Tensor of_rank_0 = at::full({1}, expected, at::kDouble);
      group.broadcast(of_rank_0, 0);
      CHECK(evaluate(ddp, Lines(), group, {.batch_size = 2}, means_of_buffers)[0] ==
            doctest::Approx(of_rank_0.item<double>()));
    };
    const at::Tensor x = at::arange(4, at::kFloat).reshape({4, 1}) * (group.rank() + 2);
    check_evaluation();
    {
      const NoSync guard = ddp.no_sync();
      ddp(x);
      check_evaluation();
      ddp(x);
    }
    check_evaluation();
    model->forward(x);
    check_evaluation();
    model->eval();
    model->layers.first->train();  // a part alone
    ddp(x);
    ddp(x);
    model->eval();
    check_evaluation();
  });
}

// feature: Z-05
TEST_CASE("ranks without samples evaluate with the others, by rank 0's buffers") {
  for (const std::size_t samples : {1U, 2U, 5U}) {
    run_group_or_throw(3, Over::arena, [&](const ProcessGroup& group) {
      torch::nn::BatchNorm1d norm(1);
      DistributedDataParallel ddp(norm, group);
      const auto train = [&] { ddp(at::arange(4, at::kFloat).reshape({4, 1}) * (group.rank() + 2)).sum().backward(); };
      train();  // after which each rank has running means of its own
      const Lines lines{samples};
      const double error = evaluate(ddp, lines, group, {.batch_size = 2}, error_and_one)[0];
      train();
      norm->running_mean.fill_(0.3);  // 0.9 * 0 + 0.1 * the mean of 0, 2, 4 and 6
      norm->running_var.fill_(0.9 + 0.1 * 20 / 3);
      norm->eval();
      const std::vector<std::int64_t> all{0, 1, 2, 3, 4};
      const auto [x, y] = lines.get_batch(std::span(all).first(samples));
      CHECK(error == doctest::Approx((norm(x) - y).abs().mean().item<double>()));
    });
  }
}

TEST_CASE("a model is afterwards in the mode that it was in, also if its evaluation fails") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    torch::nn::Linear model(1, 1);
    const auto fail = [](const at::Tensor& output, const at::Tensor&) -> std::array<double, 1> {
      throw std::runtime_error("no metric of " + std::to_string(output.size(0)));
    };
    for (const bool training : {true, false}) {
      model->train(training);
      CHECK_THROWS_AS(evaluate(model, Lines(), group, {}, fail), std::runtime_error);
      CHECK(model->is_training() == training);
      evaluate(model, Lines(), group, {}, error_and_one);
      CHECK(model->is_training() == training);
    }
    CHECK_ERROR(error_of([&] { evaluate(model, Lines(), group, {.drop_last = true}, error_and_one); }),
                ErrorKind::invalid_argument, "evaluate: drop_last leaves out samples");
    CHECK_ERROR(error_of([&] { evaluate(model, Lines(), group, {.first_batch = 1}, error_and_one); }),
                ErrorKind::invalid_argument, "evaluate: first_batch leaves out samples");
    CHECK_ERROR(error_of([&] { evaluate(model, Lines(), group, {.batch_size = 0}, error_and_one); }),
                ErrorKind::invalid_argument, "evaluate: batch_size is 0; give 1 or more");
    CHECK_ERROR(error_of([&] { evaluate(model, Lines{0}, group, {}, error_and_one); }), ErrorKind::invalid_argument,
                "evaluate: the data set has no samples");
  });
}

TEST_CASE("so is each part of it, frozen ones too") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    const auto inner = std::make_shared<Normed>();
    auto& [frozen, trained] = inner->layers;
    torch::nn::Sequential model(inner, torch::nn::Linear(1, 1), trained);
    frozen->eval();
    const auto check_modes = [&] {
      CHECK(!frozen->is_training());
      for (const bool training : {model->is_training(), inner->is_training(), trained->is_training()}) CHECK(training);
    };
    const auto metrics = [&](const at::Tensor&, const at::Tensor&) -> std::array<double, 1> {
      for (const auto& part : model->modules()) CHECK(!part->is_training());
      throw std::runtime_error("no metric");
    };
    CHECK_THROWS_AS(evaluate(model, Lines(), group, {}, metrics), std::runtime_error);
    check_modes();
    DistributedDataParallel ddp(model, group);
    evaluate(ddp, Lines(), group, {}, error_and_one);
    check_modes();
    DistributedDataParallel of_pointer(std::make_shared<torch::nn::LinearImpl>(1, 1), group);
    evaluate(of_pointer, Lines(), group, {}, error_and_one);
    CHECK(of_pointer.is_training());
  });
}

TEST_CASE("a batch in parts has the loss and the gradients of the whole") {
  for (const Weighting weighting : {Weighting::ranks, Weighting::samples}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      torch::nn::Linear model(3, 2);
      DistributedDataParallel ddp(model, group, {.weighting = weighting});
      const int rows = 7 + group.rank();
      const at::Tensor x = at::arange(3 * rows, at::kFloat).reshape({rows, 3}) + group.rank(), y = at::ones({rows, 2});
      const auto loss_of = [](const at::Tensor& output, const at::Tensor& target) {
        return (output - target).pow(2).mean();
      };
      const double whole = backward_in_parts(ddp, x, y, 1, loss_of);
      const at::Tensor gradient = model->weight.grad().clone();
      for (const int parts : {2, 3, 7, 20}) {
        ddp.zero_grad();
        CHECK(backward_in_parts(ddp, x, y, parts, loss_of) == doctest::Approx(whole));
        CHECK(at::allclose(model->weight.grad(), gradient, 1e-4, 1e-4));
      }
    });
  }
}

}  // namespace evaluate_test
