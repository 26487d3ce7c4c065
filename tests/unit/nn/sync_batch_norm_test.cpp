#include "lockstep/train/nn/sync_batch_norm.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>

#include <numeric>
#include <sstream>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/ddp/uneven_inputs/join_state.h"
#include "lockstep/train/nn/convert_sync_batchnorm.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"

namespace sync_batch_norm_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::BatchNorm3d;
using torch::nn::BatchNormOptions;

namespace {

using Batches = std::vector<std::int64_t>;  // one a rank

// torch's generator is one for all threads, so values come from arithmetic.
at::Tensor wave(at::IntArrayRef sizes, double shift, at::ScalarType type = at::kDouble) {
  const std::int64_t count = c10::multiply_integers(sizes);
  return (at::sin(at::arange(count, at::kDouble) * 0.37 + shift) + 0.3 * shift).reshape(sizes).to(type);
}

template <class Module>
void fill(Module module, at::ScalarType type) {
  module->to(type);
  const at::NoGradGuard no_grad;
  if (!module->options.affine()) return;
  module->weight.copy_(wave(module->weight.sizes(), 1) + 1.5);
  module->bias.copy_(wave(module->bias.sizes(), 2));
}

at::Tensor part_of(const at::Tensor& whole, const Batches& batches, int rank) {
  const std::int64_t before = std::accumulate(batches.begin(), batches.begin() + rank, std::int64_t{0});
  return whole.narrow(0, before, batches[static_cast<std::size_t>(rank)]);
}

void check_close(const at::Tensor& found, const at::Tensor& expected, double tolerance) {
  REQUIRE(found.defined() == expected.defined());
  if (!found.defined()) return;
  CHECK((found.scalar_type() == expected.scalar_type()));
  const double difference = found.numel() == 0 ? 0 : (found - expected).abs().max().item<double>();
  CHECK(difference <= tolerance);
}

at::Tensor sum_of_ranks(const at::Tensor& tensor, const ProcessGroup& group) {
  at::Tensor sum = tensor.clone();
  group.all_reduce(sum);
  return sum;
}

struct Case {
  std::vector<std::int64_t> sample;  // [C, ...]
  Batches batches;
  at::ScalarType type = at::kDouble;
  double tolerance = 1e-10;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
};

// Three steps of training and an evaluation on all ranks, beside torch's module on the batches of all of them.
template <class Reference>
void compare(const Case& test, const BatchNormOptions& options, Over transport = Over::arena) {
  const auto ranks = static_cast<int>(test.batches.size());
  run_group_or_throw(ranks, transport, [&](const ProcessGroup& group) {
    Reference reference(options);
    SyncBatchNorm norm(options, group);
    fill(reference, test.type);
    fill(norm, test.type);
    std::vector<std::int64_t> sizes = test.sample;
    sizes.insert(sizes.begin(), std::accumulate(test.batches.begin(), test.batches.end(), std::int64_t{0}));
    const auto mine = [&](const at::Tensor& whole) { return part_of(whole, test.batches, group.rank()); };
    const auto check_buffers = [&] {
      check_close(norm->running_mean, reference->running_mean, test.tolerance);
      check_close(norm->running_var, reference->running_var, test.tolerance);
      check_close(norm->num_batches_tracked, reference->num_batches_tracked, 0);
    };
    for (int step = 0; step < 3; ++step) {
      const at::Tensor whole = wave(sizes, step, test.type).contiguous(test.format).requires_grad_();
      const at::Tensor direction = wave(sizes, step + 7, test.type);
      const at::Tensor input = mine(whole.detach()).requires_grad_();
      norm->zero_grad();
      reference->zero_grad();
      const at::Tensor expected = reference->forward(whole);
      const at::Tensor output = norm->forward(input);
      check_close(output, mine(expected), test.tolerance);
      (expected * direction).sum().backward();
      (output * mine(direction)).sum().backward();
      check_close(input.grad(), mine(whole.grad()), test.tolerance);
      if (options.affine()) {
        check_close(sum_of_ranks(norm->weight.grad(), group), reference->weight.grad(), 10 * test.tolerance);
        check_close(sum_of_ranks(norm->bias.grad(), group), reference->bias.grad(), 10 * test.tolerance);
      }
      check_buffers();
    }
    norm->eval();
    reference->eval();
    const at::Tensor input = wave(sizes, 9, test.type);
    check_close(norm->forward(input), reference->forward(input), test.tolerance);
    check_buffers();
  });
}

// Counts the collectives of a rank.
class CountingEngine final : public Engine {
 public:
  CountingEngine(std::unique_ptr<Engine> engine, int& count) : engine_(std::move(engine)), count_(count) {}
  int rank() const override { return engine_->rank(); }
  int size() const override { return engine_->size(); }
  std::string_view name() const override { return engine_->name(); }
  std::uint64_t post(const Collective& collective, Deadline deadline, std::shared_ptr<const void> keeps) override {
    return engine_->post(collective, deadline, std::move(keeps));
  }
  bool poll() override { return engine_->poll(); }
  void wait(std::uint64_t number, Deadline deadline) override { engine_->wait(number, deadline); }
  void run(const Collective& collective, Deadline deadline) override {
    ++count_;
    engine_->run(collective, deadline);
  }
  void abort(std::string_view reason) noexcept override { engine_->abort(reason); }
  void end_with(const Error& error) noexcept override { engine_->end_with(error); }
  void check_peers() override { engine_->check_peers(); }

 private:
  std::unique_ptr<Engine> engine_;
  int& count_;
};

std::vector<Error> errors_of(int ranks, const std::function<void(const ProcessGroup&)>& body) {
  std::vector<Error> errors;
  for (const auto& error : run_group(ranks, Over::arena, body)) {
    errors.push_back(error_of([&] {
      if (error) std::rethrow_exception(error);
    }));
  }
  return errors;
}

}  // namespace

// feature: I-02, I-04
TEST_CASE("outputs, gradients and running statistics are those of the batches of all ranks, in float64") {
  for (const Batches& batches : {Batches{6}, {3, 3}, {1, 4}, {0, 5}, {5, 0}, {2, 0, 3}, {1, 2, 3, 4}}) {
    compare<BatchNorm1d>({{4}, batches}, BatchNormOptions(4));
    compare<BatchNorm1d>({{4, 3}, batches}, BatchNormOptions(4));
    compare<BatchNorm2d>({{4, 3, 2}, batches}, BatchNormOptions(4));
    compare<BatchNorm3d>({{4, 2, 3, 2}, batches}, BatchNormOptions(4));
  }
}

// feature: I-02
TEST_CASE("and in float32, over both transports") {
  for (const Over transport : {Over::arena, Over::links}) {
    for (const Batches& batches : {Batches{4, 4}, {0, 5}, {1, 2, 3, 4}}) {
      compare<BatchNorm1d>({{5}, batches, at::kFloat, 1e-5}, BatchNormOptions(5), transport);
      compare<BatchNorm2d>({{5, 4, 3}, batches, at::kFloat, 1e-5}, BatchNormOptions(5), transport);
      compare<BatchNorm3d>({{5, 2, 3, 2}, batches, at::kFloat, 1e-5}, BatchNormOptions(5), transport);
    }
  }
}

TEST_CASE("every option of BatchNorm has BatchNorm's effect") {
  const Case test{{3, 2, 2}, {2, 1, 3}};
  compare<BatchNorm2d>(test, BatchNormOptions(3).eps(0.5));
  compare<BatchNorm2d>(test, BatchNormOptions(3).momentum(0.7));
  compare<BatchNorm2d>(test, BatchNormOptions(3).momentum(std::nullopt));
  compare<BatchNorm2d>(test, BatchNormOptions(3).affine(false));
  compare<BatchNorm2d>(test, BatchNormOptions(3).track_running_stats(false));
  compare<BatchNorm2d>(test, BatchNormOptions(3).affine(false).track_running_stats(false));
}

TEST_CASE("inputs may be channels-last") {
  compare<BatchNorm2d>({{8, 3, 2}, {2, 3}, at::kFloat, 1e-5, at::MemoryFormat::ChannelsLast}, BatchNormOptions(8));
  compare<BatchNorm3d>({{8, 3, 2, 2}, {2, 3}, at::kFloat, 1e-5, at::MemoryFormat::ChannelsLast3d}, BatchNormOptions(8));
}

TEST_CASE("any number of dimensions after the channels") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    SyncBatchNorm norm(BatchNormOptions(2), group), flat(BatchNormOptions(2), group);
    const at::Tensor input = wave({2, 2, 3, 2, 2, 2}, group.rank(), at::kFloat);
    check_close(norm->forward(input), flat->forward(input.flatten(2)).reshape(input.sizes()), 1e-6);
  });
}

TEST_CASE("bfloat16 and float16 inputs have statistics in float32, whatever the module's own type") {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const auto own : {at::kFloat, type}) {
      run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
        SyncBatchNorm norm(BatchNormOptions(3), group), exact(BatchNormOptions(3), group);
        norm->to(own);
        // A mean whose neighbours in these types are further away than the deviation of the mean's own error.
        at::Tensor input = (wave({16, 3, 4}, group.rank()) + 8).to(type).requires_grad_();
        const at::Tensor wide = input.detach().to(at::kFloat).requires_grad_();
        const at::Tensor output = norm->forward(input);
        const at::Tensor expected = exact->forward(wide);
        CHECK((output.scalar_type() == type));
        const double step = type == at::kHalf ? 1.0 / 1024 : 1.0 / 128;
        CHECK((output - expected).abs().max().item<double>() < 4 * step);
        output.square().sum().backward();
        expected.square().sum().backward();
        CHECK((input.grad().scalar_type() == type));
        CHECK((norm->weight.grad().scalar_type() == own));
        CHECK(at::allclose(norm->weight.grad().to(at::kFloat), exact->weight.grad(), 4 * step, 1));
        if (own == at::kFloat) CHECK(at::allclose(norm->running_var, exact->running_var, 1e-5, 1e-6));
      });
    }
  }
}

TEST_CASE("a mean that is large beside the deviation costs no digits that torch's own module keeps") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto batch = [](int rank) { return wave({64, 2}, 0.1 * rank) + 3000; };
    const at::Tensor all = at::cat({batch(0), batch(1)});
    SyncBatchNorm norm(BatchNormOptions(2).momentum(1), group);
    (void)norm->forward(batch(group.rank()).to(at::kFloat));
    CHECK(at::allclose(norm->running_var.to(at::kDouble), all.var(0), 1e-3));
  });
}

// feature: I-07
TEST_CASE("the gradient is the derivative, in float64, on one, two and three ranks") {
  for (const Batches& batches : {Batches{3}, {2, 1}, {2, 0, 1}}) {
    run_group_or_throw(static_cast<int>(batches.size()), Over::arena, [&](const ProcessGroup& group) {
      SyncBatchNorm norm(BatchNormOptions(2), group);
      fill(norm, at::kDouble);
      const at::Tensor direction = part_of(wave({3, 2, 2}, 4), batches, group.rank());
      const at::Tensor input = part_of(wave({3, 2, 2}, 1), batches, group.rank()).clone().requires_grad_();
      const auto loss = [&] { return (norm->forward(input) * direction).sum() + norm->forward(input).pow(3).sum(); };
      loss().backward();
      // Of the loss of all ranks together, with respect to an element that one rank has, or all of them in common.
      const auto derivative = [&](const at::Tensor& element, bool perturb) {
        constexpr double kStep = 1e-5;
        const at::NoGradGuard no_grad;
        if (perturb) element.add_(kStep);
        const double above = sum_of_ranks(loss(), group).item<double>();
        if (perturb) element.sub_(2 * kStep);
        const double below = sum_of_ranks(loss(), group).item<double>();
        if (perturb) element.add_(kStep);
        return (above - below) / (2 * kStep);
      };
      for (int owner = 0; owner < group.size(); ++owner) {
        const bool mine = owner == group.rank();
        for (std::int64_t i = 0; i < batches[static_cast<std::size_t>(owner)] * 4; ++i) {
          const at::Tensor element = mine ? input.detach().view(-1)[i] : at::Tensor();
          const double expected = derivative(element, mine);
          if (mine) CHECK(input.grad().view(-1)[i].item<double>() == doctest::Approx(expected).epsilon(1e-7));
        }
      }
      for (const at::Tensor& parameter : {norm->weight, norm->bias}) {
        const at::Tensor gradient = sum_of_ranks(parameter.grad(), group);
        for (std::int64_t i = 0; i < 2; ++i) {
          const double expected = derivative(parameter.detach()[i], true);
          CHECK(gradient[i].item<double>() == doctest::Approx(expected).epsilon(1e-7));
        }
      }
    });
  }
}

// feature: I-06
TEST_CASE("outputs' statistics and running statistics are the same bits on all ranks after 50 steps") {
  for (const Over transport : {Over::arena, Over::links}) {
    run_group_or_throw(3, transport, [](const ProcessGroup& group) {
      SyncBatchNorm norm(BatchNormOptions(7), group);
      for (int step = 0; step < 50; ++step) {
        const std::int64_t samples = 1 + (step + group.rank()) % 4;
        (void)norm->forward(wave({samples, 7, 5}, step * 3 + group.rank(), at::kFloat));
      }
      for (const at::Tensor& buffer : norm->buffers()) {
        for (const at::Tensor& theirs : group.all_gather(buffer)) CHECK(at::equal(theirs, buffer));
      }
      CHECK(norm->num_batches_tracked.item<std::int64_t>() == 50);
    });
  }
}

// feature: I-03
TEST_CASE("training makes one collective in forward and one in backward; evaluation and groups of one make none") {
  for (const int ranks : {1, 3}) {
    std::vector<int> counts(static_cast<std::size_t>(ranks));
    std::vector<ProcessGroup> groups;
    for (auto& mesh : make_arena_meshes(ranks)) {
      int& count = counts[groups.size()];
      groups.emplace_back(std::make_unique<CountingEngine>(std::make_unique<LinkEngine>(std::move(mesh), 0), count));
    }
    run_ranks_or_throw(ranks, [&](int rank) {
      const int& count = counts[static_cast<std::size_t>(rank)];
      const int one = ranks > 1 ? 1 : 0;
      SyncBatchNorm norm(BatchNormOptions(3), groups[static_cast<std::size_t>(rank)]);
      const at::Tensor input = wave({4, 3}, rank, at::kFloat).requires_grad_();
      const at::Tensor output = norm->forward(input);
      CHECK(count == one);
      output.sum().backward();
      CHECK(count == 2 * one);
      norm->forward(input.detach()).sum().backward();  // the first layer of a model: nobody asks for this gradient
      CHECK(count == 3 * one);
      norm->eval();
      norm->forward(input).sum().backward();
      CHECK(count == 3 * one);
    });
  }
}

// feature: I-03
TEST_CASE("evaluation does not touch the group, even one that cannot be used") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    SyncBatchNorm norm(BatchNormOptions(3), group), untracked(BatchNormOptions(3).track_running_stats(false), group);
    BatchNorm1d plain(3), plain_untracked(BatchNormOptions(3).track_running_stats(false));
    group.barrier();
    group.abort("nobody may use it");
    norm->eval();
    untracked->eval();
    plain->eval();
    plain_untracked->eval();
    const at::Tensor input = wave({4, 3}, group.rank(), at::kFloat);
    CHECK(at::equal(norm->forward(input), plain->forward(input)));
    CHECK(at::equal(untracked->forward(input), plain_untracked->forward(input)));
    norm->train();
    CHECK_ERROR(error_of([&] { (void)norm->forward(input); }), ErrorKind::aborted, "nobody may use it");
  });
}

TEST_CASE("the samples of a joined rank count for nothing") {
  for (const Over transport : {Over::arena, Over::links}) {
    run_group_or_throw(3, transport, [](const ProcessGroup& group) {
      BatchNorm2d reference(BatchNormOptions(3));
      SyncBatchNorm norm(BatchNormOptions(3), group);
      fill(reference, at::kDouble);
      fill(norm, at::kDouble);
      const bool joined = group.rank() == 1;
      JoinState state;
      state.joined = joined;
      const JoinScope scope(state);
      const at::Tensor whole = wave({4, 3, 2, 2}, 1).requires_grad_();
      const at::Tensor input =
          (joined ? wave({5, 3, 2, 2}, 8) : part_of(whole.detach(), {2, 0, 2}, group.rank())).requires_grad_();
      const at::Tensor output = norm->forward(input);
      output.square().sum().backward();
      reference->forward(whole).square().sum().backward();
      check_close(norm->running_mean, reference->running_mean, 1e-10);
      check_close(norm->running_var, reference->running_var, 1e-10);
      if (!joined) check_close(input.grad(), part_of(whole.grad(), {2, 0, 2}, group.rank()), 1e-10);
    });
  }
}

TEST_CASE("without gradients training is synchronised all the same") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    SyncBatchNorm norm(BatchNormOptions(2), group), other(BatchNormOptions(2), group);
    const at::Tensor input = wave({3, 2}, group.rank(), at::kFloat);
    const at::Tensor expected = norm->forward(input).detach();
    const at::NoGradGuard no_grad;
    CHECK(at::equal(other->forward(input), expected));
    CHECK(at::equal(other->running_var, norm->running_var));
  });
}

TEST_CASE("ranks with different numbers of channels are told so, all of them") {
  const auto errors = errors_of(3, [](const ProcessGroup& group) {
    const int channels = group.rank() == 1 ? 8 : 4;
    SyncBatchNorm norm(BatchNormOptions(channels), group);
    (void)norm->forward(wave({2, channels}, 0, at::kFloat));
  });
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    CHECK_ERROR(errors[rank], ErrorKind::desync,
                "SyncBatchNorm of " + std::to_string(rank == 1 ? 8 : 4) + " channels on rank " + std::to_string(rank),
                "9", "17");
  }
}

struct TwoImpl : torch::nn::Module {
  explicit TwoImpl(const ProcessGroup& group) {
    one = register_module("one", SyncBatchNorm(BatchNormOptions(3), group));
    two = register_module("two", torch::nn::BatchNorm1d(3));
    convert_sync_batchnorm(*this, group);
  }
  at::Tensor forward(const at::Tensor& input, bool first) { return first ? one->forward(input) : two->forward(input); }
  SyncBatchNorm one = nullptr;
  torch::nn::BatchNorm1d two = nullptr;
};
TORCH_MODULE(Two);

TEST_CASE("ranks that come to different layers of a model are told which, though sizes fit") {
  for (const bool in_backward : {false, true}) {
    const auto errors = errors_of(2, [&](const ProcessGroup& group) {
      DistributedDataParallel ddp(Two(group), group, {.find_unused_parameters = true});
      const at::Tensor input = wave({2, 3}, 0, at::kFloat).requires_grad_();
      const bool first = group.rank() == 0;
      if (in_backward) {
        const at::Tensor one = ddp(input, true), two = ddp(input, false);
        (first ? one : two).sum().backward();
      } else {
        (void)ddp(input, first);
      }
    });
    const std::string what = in_backward ? "SyncBatchNorm gradients of " : "SyncBatchNorm statistics of ";
    for (const Error& error : errors) {
      CHECK_ERROR(error, ErrorKind::desync, what + "'one' in wrapper", what + "'two' in wrapper");
    }
  }
}

TEST_CASE("a batch that does not fit on one rank ends the call on all of them with one text") {
  const auto fails = [](const at::Tensor& bad, const std::string& text) {
    const auto errors = errors_of(2, [&](const ProcessGroup& group) {
      SyncBatchNorm norm(BatchNormOptions(4), group);
      (void)norm->forward(group.rank() == 1 ? bad : wave({2, 4}, 0, at::kFloat));
    });
    CHECK_ERROR(errors[0], ErrorKind::aborted, "SyncBatchNorm on rank 1", text);
    CHECK_ERROR(errors[1], ErrorKind::invalid_argument, "SyncBatchNorm on rank 1", text);
  };
  fails(at::zeros({2, 5}), "the input has shape [2, 5], so 5 channels, but the module has 4");
  fails(at::zeros({4}), "the input has shape [4]; expected [N, C, ...]");
  fails(at::zeros({2, 0}), "the input has shape [2, 0]; expected [N, C, ...] with C > 0");
  fails(at::zeros({2, 4}, at::kLong), "of type Long; expected a floating-point type");
}

TEST_CASE("too few values on all ranks together are refused by all, and the group goes on") {
  for (const std::int64_t samples : {0, 1}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      SyncBatchNorm norm(BatchNormOptions(4), group);
      const at::Tensor input = at::zeros({group.rank() == 0 ? samples : 0, 4});
      CHECK_ERROR(error_of([&] { (void)norm->forward(input); }), ErrorKind::invalid_argument,
                  "the batches of all 2 ranks together have " + std::to_string(samples) + " values a channel",
                  "needs at least two");
      (void)norm->forward(wave({1, 4}, group.rank(), at::kFloat));  // two of them are enough
    });
  }
}

TEST_CASE("gradients of gradients are refused") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    SyncBatchNorm norm(BatchNormOptions(2), group);
    const at::Tensor input = wave({3, 2}, group.rank(), at::kFloat).requires_grad_();
    const at::Tensor loss = norm->forward(input).square().sum();
    CHECK_ERROR(
        error_of([&] { (void)torch::autograd::grad({loss}, {input}, {}, std::nullopt, /*create_graph=*/true); }),
        ErrorKind::invalid_argument, "second derivatives are not supported");
  });
}

TEST_CASE("the module prints and clones itself with its group") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    SyncBatchNorm norm(BatchNormOptions(2).momentum(std::nullopt), group);
    std::ostringstream text;
    norm->pretty_print(text);
    CHECK(text.str() == "lockstep::SyncBatchNorm(2, eps=1e-05, momentum=None, affine=true, track_running_stats=true)");
    const auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(norm->clone());
    const at::Tensor input = wave({3, 2}, group.rank(), at::kFloat);
    CHECK(at::equal(copy->forward(input), norm->forward(input)));
    CHECK(at::equal(copy->running_mean, norm->running_mean));
  });
}

}  // namespace sync_batch_norm_test
