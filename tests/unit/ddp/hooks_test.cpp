#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/observe/backward_name.h"
#include "lockstep/train/ddp/comm_hooks/default_hooks.h"
#include "lockstep/train/ddp/comm_hooks/low_rank.h"
#include "lockstep/train/ddp/comm_hooks/power_sgd.h"
#include "lockstep/train/ddp/comm_hooks/quantization_hooks.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"

namespace hooks_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

using Tensors = std::vector<at::Tensor>;

// torch's generator is one for all threads, so values come from arithmetic.
at::Tensor wave(at::IntArrayRef sizes, double shift) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return (at::sin(at::arange(count, at::kFloat) * 0.37 + shift) * (1 + at::cos(at::arange(count, at::kFloat) * 1.3)))
      .reshape(sizes);
}

// A layer's gradients on a rank: a matrix, a bias, another matrix of the same shape, a kernel, a matrix too small to be
// worth anything, a scalar.
Tensors layer(int rank, int step = 0) {
  const double shift = rank * 1.7 + step * 0.31;
  return {wave({24, 16}, shift),         wave({24}, shift + 1),   wave({24, 16}, shift + 2),
          wave({8, 4, 3, 3}, shift + 3), wave({2, 3}, shift + 4), wave({}, shift + 5)};
}

GradBucket bucket_of(const Tensors& gradients, std::size_t index = 0, bool is_last = true) {
  Tensors flat;
  std::vector<std::string> names;
  for (const auto& gradient : gradients) {
    flat.push_back(gradient.flatten());
    names.push_back("p" + std::to_string(index) + "." + std::to_string(names.size()));
  }
  return GradBucket(index, is_last, at::cat(flat), gradients, names);
}

at::Tensor apply(const CommHook& hook, const Tensors& gradients, const ProcessGroup& group, std::size_t index = 0) {
  GradBucket bucket = bucket_of(gradients, index);
  return hook(bucket, group)();
}

template <class Gradients>
at::Tensor mean_of_buffers(int ranks, Gradients gradients) {
  at::Tensor sum = bucket_of(gradients(0)).buffer();
  for (int rank = 1; rank < ranks; ++rank) sum = sum + bucket_of(gradients(rank)).buffer();
  return sum / ranks;
}

at::Tensor layer_mean(int ranks, int step = 0) {
  return mean_of_buffers(ranks, [step](int rank) { return layer(rank, step); });
}

double distance(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }
double relative(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

bool same_on_all_ranks(const ProcessGroup& group, const at::Tensor& tensor) {
  for (const auto& other : group.all_gather(tensor)) {
    if (!at::equal(other, tensor)) return false;
  }
  return true;
}

// The text of the invalid_argument that `call` throws.
template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::invalid_argument);
    return error.what();
  }
  return "nothing was thrown";
}

// Compresses from the third iteration on.
constexpr PowerSgdOptions kSoon{.start_power_sgd_iter = 2};

void pass_plain_iterations(const CommHook& hook, const ProcessGroup& group) {
  for (int step = 0; step < 2; ++step) (void)apply(hook, {at::zeros({1})}, group);
}

}  // namespace

TEST_CASE("who reads recordings finds the number of a backward in the names of its collectives") {
  for (const std::uint64_t wrapper : {1, 2}) {
    for (const char* part : {"", "Q"}) {
      const std::string name = bucket_call_name(0, {"fc.weight", "fc.bias"}, part, wrapper);
      CHECK(backward_of_first_bucket(name + " 17") == 17);
      CHECK_FALSE(backward_of_first_bucket(bucket_call_name(1, {"fc.weight"}, part, wrapper) + " 17"));
    }
  }
}

TEST_CASE("hooks average, equally on all ranks, at any number of ranks") {
  struct Case {
    const char* name;
    CommHook hook;
    double tolerance;
  };
  const Case cases[] = {{"all_reduce", all_reduce_hook(), 0},
                        {"fp16", fp16_compress_hook(), 2e-3},
                        {"bf16", bf16_compress_hook(), 2e-2},
                        {"bf16 inside fp16", fp16_compress_hook(bf16_compress_hook()), 2e-2},
                        {"8 bits", quantize_8bit_hook(), 8e-3},
                        {"8 bits, channels", quantize_8bit_per_channel_hook(16), 8e-3},
                        {"8 bits inside fp16", fp16_compress_hook(quantize_8bit_hook()), 1e-2}};
  for (const Over transport : kTransports) {
    for (const int ranks : {1, 2, 3, 4}) {
      run_group_or_throw(ranks, transport, [&](const ProcessGroup& group) {
        for (const Case& c : cases) {
          CAPTURE(c.name);
          const at::Tensor got = apply(c.hook, layer(group.rank()), group);
          CHECK(same_on_all_ranks(group, got));
          CHECK(distance(got, layer_mean(ranks)) <= c.tolerance);
        }
      });
    }
  }
}

TEST_CASE("several buckets are on their way before the first result is asked for") {
  // A hook with a memory is made by each rank.
  const std::function<CommHook()> makers[] = {
      [] { return all_reduce_hook(); }, [] { return fp16_compress_hook(); }, [] { return quantize_8bit_hook(); },
      [] { return PowerSgd({.matrix_approximation_rank = 24, .start_power_sgd_iter = 2}).hook(); }};
  for (const auto& make : makers) {
    run_group_or_throw(3, Over::links, [&](const ProcessGroup& group) {
      const CommHook hook = make();
      pass_plain_iterations(hook, group);
      std::vector<GradBucket> buckets;
      std::vector<BucketResult> results;
      for (std::size_t i = 0; i < 4; ++i) {
        buckets.push_back(bucket_of(layer(group.rank(), static_cast<int>(i)), i, i == 3));
        results.push_back(hook(buckets.back(), group));
      }
      buckets.clear();
      for (int i = 0; i < 4; ++i) CHECK(distance(results[static_cast<std::size_t>(i)](), layer_mean(3, i)) < 2e-2);
    });
  }
}

TEST_CASE("a PowerSgd that serves one wrapper is refused by another") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    const CommHook hook = PowerSgd(kSoon).hook();
    pass_plain_iterations(hook, group);
    GradBucket others(0, true, at::zeros({1}), {at::zeros({1})}, {"p"}, 0, 2);
    CHECK_ERROR(
        error_of([&] { (void)hook(others, group); }), ErrorKind::invalid_argument,
        "this PowerSgd already belongs to another DistributedDataParallel; make a separate one for each wrapper");
  });
}

TEST_CASE("noop_hook leaves every rank its own gradients") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    CHECK(at::equal(apply(noop_hook(), layer(group.rank()), group), bucket_of(layer(group.rank())).buffer()));
  });
}

TEST_CASE("a compressing hook gives the compressed bucket to the hook inside, and its result back in the old type") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    std::string seen;
    const CommHook inner = [&seen](GradBucket& bucket, const ProcessGroup&) {
      seen = std::string(c10::toString(bucket.buffer().scalar_type())) + " bucket " + std::to_string(bucket.index());
      CHECK(bucket.gradients()[0].sizes() == at::IntArrayRef({24, 16}));
      return [buffer = bucket.buffer()] { return buffer * 3; };
    };
    const at::Tensor buffer = bucket_of(layer(0)).buffer();
    const at::Tensor got = apply(fp16_compress_hook(inner), layer(0), group, 5);
    CHECK(seen == "Half bucket 5");
    CHECK(at::equal(got, (buffer.to(at::kHalf) * 3).to(at::kFloat)));
    // The outer one rounds first.
    const at::Tensor twice = apply(bf16_compress_hook(fp16_compress_hook(inner)), layer(0), group);
    CHECK(seen == "Half bucket 0");
    CHECK(at::equal(twice, (buffer.to(at::kBFloat16).to(at::kHalf) * 3).to(at::kBFloat16).to(at::kFloat)));
    const Tensors doubles = {wave({5}, 0).to(at::kDouble)};
    CHECK((apply(bf16_compress_hook(), doubles, group).scalar_type() == at::kDouble));
  });
}

TEST_CASE("gradients that float16 can hold do not overflow in the sum, and what it cannot hold is seen") {
  run_group_or_throw(4, Over::arena, [](const ProcessGroup& group) {
    CHECK(at::equal(apply(fp16_compress_hook(), {at::full({3}, 60000.0)}, group),
                    at::full({3}, 60000.0).to(at::kHalf).to(at::kFloat)));
    CHECK(std::isinf(apply(fp16_compress_hook(), {at::full({3}, 1e6)}, group)[0].item<float>()));
  });
}

TEST_CASE("8 bits: half a level of error for each rank, less with channels, none for zeros, and NaN is kept") {
  run_group_or_throw(3, Over::arena, [](const ProcessGroup& group) {
    // A few large values among small ones.
    const auto gradients = [](int rank) {
      at::Tensor values = wave({4000}, rank) * 0.01;
      values.narrow(0, 0, 100).mul_(500);
      return Tensors{values};
    };
    const at::Tensor mean = mean_of_buffers(3, gradients);
    double half_level = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const at::Tensor values = gradients(rank)[0];
      half_level += (values.max() - values.min()).item<double>() / 255 / 2 / 3;
    }
    const at::Tensor whole = apply(quantize_8bit_hook(), gradients(group.rank()), group);
    CHECK(distance(whole, mean) <= half_level * 1.001);
    CHECK(distance(whole, mean) > half_level / 10);
    const at::Tensor channels = apply(quantize_8bit_per_channel_hook(100), gradients(group.rank()), group);
    CHECK(distance(channels.narrow(0, 100, 3900), mean.narrow(0, 100, 3900)) < half_level / 50);
    CHECK(at::equal(apply(quantize_8bit_hook(), {at::zeros({7})}, group), at::zeros({7})));
    at::Tensor broken = at::ones({1000});
    if (group.rank() == 1) broken[3] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor seen = apply(quantize_8bit_per_channel_hook(500), {broken}, group);
    CHECK(seen.isnan().narrow(0, 0, 500).all().item<bool>());
    CHECK_FALSE(seen.isnan().narrow(0, 500, 500).any().item<bool>());
  });
}

TEST_CASE("columns become orthonormal; zeros stay zeros; random columns follow their seed") {
  for (const std::int64_t columns : {1, 2, 5}) {
    const at::Tensor matrices = wave({3, 20, columns}, 0.4).contiguous();
    orthogonalize(matrices, 0);
    CHECK(distance(matrices.transpose(1, 2).bmm(matrices), at::eye(columns).expand({3, columns, columns})) < 1e-5);
  }
  const at::Tensor zeros = at::zeros({1, 4, 2});
  orthogonalize(zeros, 0);
  CHECK(at::equal(zeros, at::zeros({1, 4, 2})));
  const at::Tensor halves = wave({2, 30, 4}, 0.1).to(at::kHalf);
  orthogonalize(halves, 0);
  CHECK(distance(halves.transpose(1, 2).bmm(halves).to(at::kFloat), at::eye(4).expand({2, 4, 4})) < 2e-2);

  const auto drawn = [](std::uint64_t seed) {
    const LowRank low_rank({at::zeros({1, 9, 7}), at::zeros({2, 5, 6})}, 3);
    low_rank.draw_q(seed);
    return low_rank.q().clone();
  };
  CHECK(drawn(1).numel() == 7 * 3 + 2 * 6 * 3);
  CHECK(at::equal(drawn(1), drawn(1)));
  CHECK_FALSE(at::equal(drawn(1), drawn(2)));
}

TEST_CASE("PowerSGD is exact where the mean's rank is not above its own, and leaves the plain iterations alone") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool batch : {false, true}) {
      const auto gradients = [](int rank, int step) {
        const at::Tensor columns = wave({30, 2}, 0.2 + step), rows = wave({2, 20}, 0.7 + rank);
        return Tensors{columns.mm(rows), wave({30}, rank), columns.mm(rows * 2 - 1).reshape({30, 5, 4})};
      };
      run_group_or_throw(ranks, Over::arena, [&](const ProcessGroup& group) {
        PowerSgd power_sgd(
            {.matrix_approximation_rank = 2, .start_power_sgd_iter = 2, .batch_tensors_with_same_shape = batch});
        for (int step = 0; step < 6; ++step) {
          const at::Tensor got = apply(power_sgd.hook(), gradients(group.rank(), step), group);
          const at::Tensor mean = mean_of_buffers(ranks, [&](int rank) { return gradients(rank, step); });
          CHECK(same_on_all_ranks(group, got));
          if (step < 2) CHECK(at::equal(got, mean));
          CHECK(relative(got, mean) < 1e-5);
        }
        CHECK(power_sgd.compression_stats().elements_before == 4 * (2 * 600 + 30));
        CHECK(power_sgd.compression_stats().elements_after == 4 * (2 * 2 * 50 + 30));
        CHECK(power_sgd.compression_stats().rate() == doctest::Approx(1230.0 / 230));
      });
    }
  }
}

TEST_CASE("PowerSGD sends what is not worth compressing as it is") {
  run_group_or_throw(3, Over::links, [](const ProcessGroup& group) {
    PowerSgd power_sgd({.matrix_approximation_rank = 1,
                        .start_power_sgd_iter = 0,
                        .min_compression_rate = 4.8,
                        .use_error_feedback = false,
                        .warm_start = false});
    const at::Tensor got = apply(power_sgd.hook(), layer(group.rank()), group);
    const at::Tensor mean = layer_mean(3);
    // 24 x 16 saves a factor of 9.6, 8 x 36 one of 6.5; 2 x 3 one of 1.2, and a bias or scalar nothing.
    CHECK(power_sgd.compression_stats().elements_after == 2 * 40 + 44 + 24 + 6 + 1);
    CHECK(distance(got.narrow(0, 0, 384), mean.narrow(0, 0, 384)) > 1e-2);
    CHECK(at::equal(got.narrow(0, 384, 24), mean.narrow(0, 384, 24)));
    CHECK(at::equal(got.narrow(0, 2 * 384 + 24 + 288, 7), mean.narrow(0, 2 * 384 + 24 + 288, 7)));
  });
}

TEST_CASE("with error feedback what PowerSGD has given adds up to what it was given") {
  const auto remaining = [](bool feedback, bool batched, int steps) {
    double result = 0;
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      PowerSgdOptions options = kSoon;
      options.use_error_feedback = feedback;
      PowerSgd power_sgd(options);
      const CommHook hook = batched ? power_sgd.batched_hook() : power_sgd.hook();
      pass_plain_iterations(hook, group);
      at::Tensor sum = at::zeros_like(layer_mean(2));
      for (int step = 0; step < steps; ++step) sum += apply(hook, layer(group.rank()), group);
      if (group.rank() == 0) result = relative(sum / steps, layer_mean(2));
    });
    return result;
  };
  for (const bool batched : {false, true}) {
    CAPTURE(batched);
    CHECK(remaining(true, batched, 50) < 0.2);
    CHECK(remaining(true, batched, 200) < remaining(true, batched, 50) / 2);
    CHECK(remaining(false, batched, 200) > 0.2);
  }
}

TEST_CASE("a warm start makes a power iteration of equal gradients") {
  const auto last_error = [](bool warm) {
    double result = 0;
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      PowerSgdOptions options = kSoon;
      options.warm_start = warm;
      options.use_error_feedback = false;
      PowerSgd power_sgd(options);
      pass_plain_iterations(power_sgd.hook(), group);
      const at::Tensor matrix = wave({40, 30}, 0.1) + 0.5 * wave({40, 1}, 2).mm(wave({1, 30}, 1));
      at::Tensor got;
      for (int step = 0; step < 60; ++step) got = apply(power_sgd.hook(), {matrix}, group).view({40, 30});
      const auto [u, s, v] = at::linalg_svd(matrix, false);
      const at::Tensor best = s[0] * u.narrow(1, 0, 1).mm(v.narrow(0, 0, 1));
      if (group.rank() == 0) result = relative(got, best);
      const auto state = power_sgd.state();
      CHECK(state.contains("power_sgd.q.p0.0") == warm);
      CHECK((state.at("power_sgd.random_draws").item<std::int64_t>() >= 60) == !warm);
    });
    return result;
  };
  CHECK(last_error(true) < 1e-3);
  CHECK(last_error(false) > 1e-2);
}

TEST_CASE("PowerSGD with saved state goes on bit by bit") {
  for (const bool batched : {false, true}) {
    for (const bool warm : {false, true}) {
      run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
        PowerSgdOptions options{
            .matrix_approximation_rank = 3, .start_power_sgd_iter = 3, .warm_start = warm, .random_seed = 5};
        const auto hook_of = [&](const PowerSgd& p) { return batched ? p.batched_hook() : p.hook(); };
        PowerSgd whole(options), first(options), second(options);
        const auto step_of = [&](const PowerSgd& p, int step) {
          GradBucket buckets[] = {bucket_of(layer(group.rank(), step), 0, false),
                                  bucket_of(layer(group.rank(), step + 50), 1, true)};
          const BucketResult results[] = {hook_of(p)(buckets[0], group), hook_of(p)(buckets[1], group)};
          const at::Tensor a = results[0](), b = results[1]();
          return at::cat({a, b});
        };
        for (int step = 0; step < 5; ++step) {
          (void)step_of(whole, step);
          (void)step_of(first, step);
        }
        const auto saved = first.state("comm.");
        CHECK(saved.lower_bound("comm.error.p1.0")->first.starts_with("comm.error.p1.0"));
        (void)step_of(first, 99);  // does not reach what was saved
        second.load_state(saved, "comm.");
        for (int step = 5; step < 9; ++step) CHECK(at::equal(step_of(second, step), step_of(whole, step)));
        CHECK(second.compression_stats().elements_before == whole.compression_stats().elements_before);
      });
    }
  }
}

TEST_CASE("PowerSGD goes on after gradients of zeros") {
  for (const std::int64_t rank : {1, 2, 4}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      PowerSgd power_sgd({.matrix_approximation_rank = rank, .start_power_sgd_iter = 2, .min_compression_rate = 1});
      pass_plain_iterations(power_sgd.hook(), group);
      (void)apply(power_sgd.hook(), {at::zeros({24, 16})}, group);
      const at::Tensor gradient = wave({24, 16}, 0);
      at::Tensor sum = at::zeros({24 * 16});
      for (int step = 0; step < 40; ++step) sum += apply(power_sgd.hook(), {gradient.clone()}, group);
      CHECK(relative(sum, gradient.flatten() * 40) < 0.3);
    });
  }
}

TEST_CASE("PowerSGD with the state of other ranks begins without their errors") {
  std::map<std::string, at::Tensor> saved;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    PowerSgd power_sgd(kSoon);
    for (int step = 0; step < 5; ++step) (void)apply(power_sgd.hook(), layer(group.rank(), step), group);
    if (group.rank() == 0) saved = power_sgd.state();
  });
  CHECK(saved.at("power_sgd.error.p0.0").abs().max().item<double>() > 0);
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    PowerSgd resumed(kSoon);
    resumed.load_state(saved);
    (void)apply(resumed.hook(), layer(0, 9), group);
    const auto after = resumed.state();
    PowerSgd without(kSoon);
    std::erase_if(saved, [](const auto& entry) { return entry.first.starts_with("power_sgd.error."); });
    without.load_state(saved);
    (void)apply(without.hook(), layer(0, 9), group);
    for (const auto& [name, tensor] : without.state()) CHECK(at::equal(tensor, after.at(name)));
  });
}

TEST_CASE("PowerSGD with error feedback refuses gradients with weights") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    GradBucket bucket(0, true, at::zeros({1}), {at::zeros({1})}, {"p"}, 0, 1, /*is_weighted=*/true);
    CHECK(contains(refusal([&] { (void)PowerSgd(kSoon).hook()(bucket, group); }),
                   "PowerSgd with error feedback cannot be used with gradients that are divided by the weights"));
    PowerSgd without({.start_power_sgd_iter = 2, .use_error_feedback = false});
    (void)without.hook()(bucket, group)();
  });
}

TEST_CASE("PowerSGD forgets a step that is not finite, or that a failure has cut short") {
  for (const bool warm : {false, true}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      PowerSgdOptions options{.matrix_approximation_rank = 2, .start_power_sgd_iter = 2, .warm_start = warm};
      options.use_error_feedback = true;
      PowerSgd power_sgd(options);
      const auto step_of = [&](int step, double bad, int buckets) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(buckets); ++i) {
          Tensors gradients = layer(group.rank(), step + 7 * static_cast<int>(i));
          if (i == 0 && group.rank() == 1) gradients.front().view({-1})[0] += bad;
          GradBucket bucket = bucket_of(gradients, i, i == 1);
          (void)power_sgd.hook()(bucket, group)();
        }
      };
      for (int step = 0; step < 4; ++step) step_of(step, 0, 2);
      const auto before = power_sgd.state();
      step_of(4, std::numeric_limits<double>::infinity(), 2);
      step_of(5, 0, 1);
      const auto after = power_sgd.state();
      for (const auto& [name, tensor] : before) {
        if (name.starts_with("power_sgd.q") || name.starts_with("power_sgd.error")) {
          CAPTURE(name);
          CHECK(at::equal(tensor, after.at(name)));
        }
      }
      CHECK(before.size() == after.size());
      step_of(6, 0, 2);
      for (const auto& [name, tensor] : power_sgd.state()) CHECK(tensor.isfinite().all().item<bool>());
    });
  }
}

TEST_CASE("an invalid state is refused, and changes nothing") {
  PowerSgd power_sgd(kSoon);
  auto state = power_sgd.state();
  const auto refused = [&] { return refusal([&] { power_sgd.load_state(state); }); };
  state["fc.weight"] = at::zeros({2});  // of the model, in the same checkpoint
  CHECK(refused() == "nothing was thrown");
  state["power_sgd.iteration"] = at::scalar_tensor(-3, at::kLong);
  CHECK(contains(refused(), "power_sgd.iteration is not an entry of a saved state"));
  state["power_sgd.iteration"] = at::scalar_tensor(7, at::kLong);
  state["power_sgd.errors"] = at::zeros({2});
  CHECK(contains(refused(), "power_sgd.errors is not an entry of a saved state"));
  state.erase("power_sgd.errors");
  state.erase("power_sgd.next_report");
  CHECK(contains(refused(), "the tensors with the prefix 'power_sgd.' are not a complete saved state"));
  CHECK(power_sgd.state().at("power_sgd.iteration").item<std::int64_t>() == 0);
}

TEST_CASE("buckets other than the remembered ones are refused with both sizes") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    for (const bool feedback : {true, false}) {
      PowerSgdOptions options = kSoon;
      options.use_error_feedback = feedback;
      PowerSgd power_sgd(options);
      pass_plain_iterations(power_sgd.hook(), group);
      (void)apply(power_sgd.hook(), {wave({20, 20}, 0)}, group);
      const std::string text = refusal([&] { (void)apply(power_sgd.hook(), {wave({20, 30}, 0)}, group); });
      CHECK(contains(text, feedback ? "error of p0.0 is 400 elements of type Float in the state, but the run needs 600"
                                    : "Q of p0.0 is 20 elements of type Float in the state"));
    }
  });
}

TEST_CASE("gradients of a type that a hook cannot take are refused by name") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    const std::map<std::string, CommHook> hooks = {{"fp16_compress_hook", fp16_compress_hook()},
                                                   {"bf16_compress_hook", bf16_compress_hook()},
                                                   {"quantize_8bit_hook", quantize_8bit_hook()},
                                                   {"quantize_8bit_per_channel_hook", quantize_8bit_per_channel_hook()},
                                                   {"PowerSgd", PowerSgd().hook()}};
    for (const auto& [name, hook] : hooks) {
      for (const at::ScalarType type : {at::kInt, at::kComplexFloat}) {
        const std::string text = refusal([&] { (void)apply(hook, {at::ones({4}, type)}, group, 2); });
        CHECK(contains(text, name + " takes gradients of type Float"));
        CHECK(contains(text, "those of bucket 2 are of type " + std::string(c10::toString(type))));
      }
    }
  });
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const Tensors complex = {at::complex(wave({3}, group.rank()), wave({3}, 4))};
    CHECK(apply(all_reduce_hook(), complex, group).is_complex());
    CHECK(contains(refusal([&] { (void)apply(all_reduce_hook(), {at::ones({4}, at::kInt)}, group); }), "avg"));
  });
}

TEST_CASE("options that make no sense are refused") {
  const auto refused = [](const PowerSgdOptions& options) { return refusal([&] { PowerSgd power_sgd(options); }); };
  CHECK(contains(refused({.matrix_approximation_rank = 0}), "matrix_approximation_rank is 0"));
  CHECK(contains(refused({.start_power_sgd_iter = 1}),
                 "start_power_sgd_iter is 1; with use_error_feedback or warm_start"));
  CHECK(contains(refused({.start_power_sgd_iter = 0, .use_error_feedback = false}), "start_power_sgd_iter is 0"));
  CHECK(contains(refused({.min_compression_rate = std::nan("")}), "min_compression_rate is nan"));
  CHECK(contains(refused({.orthogonalization_epsilon = -1}), "orthogonalization_epsilon is -1"));
  CHECK(refused({.start_power_sgd_iter = 0, .use_error_feedback = false, .warm_start = false}) == "nothing was thrown");
  CHECK(contains(refusal([] { (void)quantize_8bit_per_channel_hook(0); }), "channel_elements is 0; give at least 1"));
  CHECK(contains(refusal([] { (void)fp16_compress_hook(nullptr); }), "fp16_compress_hook got an empty inner hook"));
}

TEST_CASE("a hook that gives too few elements is named by the one around it") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    const CommHook broken = [](GradBucket&, const ProcessGroup&) { return [] { return at::zeros({1}); }; };
    CHECK(contains(refusal([&] { (void)apply(bf16_compress_hook(broken), {at::ones({4})}, group); }),
                   "the hook inside bf16_compress_hook returned 1 elements for a bucket of 4"));
  });
}

TEST_CASE("a rank with a bucket of another size is an error on all ranks") {
  const std::map<std::string, CommHook> hooks = {
      {"all_reduce", all_reduce_hook()}, {"fp16", fp16_compress_hook()}, {"8 bits", quantize_8bit_hook()}};
  for (const Over transport : kTransports) {
    for (const auto& [name, hook] : hooks) {
      CAPTURE(name);
      const auto errors = run_group(3, transport, [&, hook = hook](const ProcessGroup& group) {
        (void)apply(hook, {wave({group.rank() == 1 ? 40 : 50, 20}, 0)}, group);
      });
      for (const auto& error : errors) {
        REQUIRE(error != nullptr);
        CHECK_THROWS_AS(std::rethrow_exception(error), Error);
      }
    }
    const auto errors = run_group(3, transport, [&](const ProcessGroup& group) {
      PowerSgd power_sgd(kSoon);
      pass_plain_iterations(power_sgd.hook(), group);
      (void)apply(power_sgd.hook(), {wave({group.rank() == 1 ? 40 : 50, 20}, 0)}, group);
    });
    for (const auto& error : errors) REQUIRE(error != nullptr);
  }
}

TEST_CASE("a gradient of zeros or of one element does PowerSGD no harm, in any real type") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      for (const std::int64_t rank : {1, 4}) {
        for (const bool batched : {false, true}) {
          PowerSgd power_sgd({.matrix_approximation_rank = rank,
                              .start_power_sgd_iter = 0,
                              .use_error_feedback = false,
                              .warm_start = false});
          const CommHook hook = batched ? power_sgd.batched_hook() : power_sgd.hook();
          CHECK(at::equal(apply(hook, {at::zeros({30, 30}, type)}, group), at::zeros({900}, type)));
          const at::Tensor one = apply(hook, {at::full({}, 2, type)}, group);
          CHECK(distance(one.to(at::kFloat), at::full({1}, 2)) < 0.02);
          CHECK((one.scalar_type() == type));
        }
      }
    }
  });
}

TEST_CASE("hooks of one's own") {
  // The largest gradient of all ranks, and a count of buckets.
  std::atomic<int> calls = 0;
  const CommHook largest = [&calls](GradBucket& bucket, const ProcessGroup& group) -> BucketResult {
    ++calls;
    CHECK(bucket.names().size() == bucket.parameters().size());
    group.all_reduce(bucket.buffer(), ReduceOp::max);
    return [buffer = bucket.buffer()] { return buffer; };
  };
  run_group_or_throw(3, Over::links, [&](const ProcessGroup& group) {
    CHECK(at::equal(apply(largest, {at::full({2, 2}, 1.0 * group.rank())}, group), at::full({4}, 2.0)));
    CHECK(at::equal(apply(fp16_compress_hook(largest), {at::full({2, 2}, 1.0 * group.rank())}, group),
                    at::full({4}, 2.0)));
  });
  CHECK(calls == 6);
}

}  // namespace hooks_test
