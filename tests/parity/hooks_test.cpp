// Our communication hooks against PyTorch's (hook_reference.py), on the same gradients.
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/ddp/comm_hooks/default_hooks.h"
#include "lockstep/train/ddp/comm_hooks/power_sgd.h"
#include "lockstep/train/ddp/comm_hooks/quantization_hooks.h"
#include "tests/parity/support.h"
#include "tests/support/local_groups.h"

// Behind torch's headers, whose own CHECK would replace doctest's.
#include <doctest/doctest.h>

namespace hooks_test {

namespace {

using namespace lockstep;
using Tensors = std::vector<at::Tensor>;

constexpr std::size_t kBuckets = 2;

// How far results may be from PyTorch's. Two numbers have one sum, so that with two ranks most are the same bits. Gloo
// adds those of four in another order than ours, and rounds every sum of 16-bit numbers where we round once.
struct Tolerance {
  double two_ranks = 0;
  double four_ranks = 0;
};
constexpr Tolerance kFloat32{0, 1e-6};
constexpr Tolerance kFloat16{0, 2e-3};
constexpr Tolerance kBFloat16{0, 2e-2};
constexpr Tolerance kExact{0, 0};
constexpr Tolerance kPowerSgd{1e-6, 1e-6};
constexpr Tolerance kFloat16PowerSgd{2e-3, 2e-3};

struct Case {
  std::string name;
  Tolerance tolerance;
  std::function<CommHook()> make;                 // for hooks without a memory
  std::optional<PowerSgdOptions> power_sgd = {};  // for the others
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"all_reduce", kFloat32, [] { return all_reduce_hook(); }},
      {"fp16", kFloat16, [] { return fp16_compress_hook(); }},
      {"bf16", kBFloat16, [] { return bf16_compress_hook(); }},
      {"fp16_all_reduce", kFloat16, [] { return fp16_compress_hook(all_reduce_hook()); }},
      {"bf16_fp16", kBFloat16, [] { return bf16_compress_hook(fp16_compress_hook()); }},
      {"noop", kExact, [] { return noop_hook(); }},
      {"quantize", kExact, [] { return quantize_8bit_hook(); }},
      {"quantize_channels", kExact, [] { return quantize_8bit_per_channel_hook(); }},
      {"power_sgd", kPowerSgd, {}, {{}}},
      {"power_sgd_rank2", kPowerSgd, {}, {{.matrix_approximation_rank = 2, .random_seed = 7}}},
      {"power_sgd_rank4", kPowerSgd, {}, {{.matrix_approximation_rank = 4, .min_compression_rate = 1.5}}},
      {"power_sgd_cold", kPowerSgd, {}, {{.matrix_approximation_rank = 2, .warm_start = false, .random_seed = 123456}}},
      {"power_sgd_no_feedback", kPowerSgd, {}, {{.use_error_feedback = false}}},
      {"power_sgd_at_once",
       kPowerSgd,
       {},
       {{.start_power_sgd_iter = 0, .use_error_feedback = false, .warm_start = false}}},
      {"power_sgd_epsilon", kPowerSgd, {}, {{.matrix_approximation_rank = 2, .orthogonalization_epsilon = 0.1}}},
      {"power_sgd_batches", kPowerSgd, {}, {{.matrix_approximation_rank = 2, .batch_tensors_with_same_shape = true}}},
      {"batched_power_sgd", kPowerSgd, {}, {{}}},
      {"batched_power_sgd_rank3", kPowerSgd, {}, {{.matrix_approximation_rank = 3, .warm_start = false}}},
      {"fp16_power_sgd", kFloat16PowerSgd, {}, {{}}}};
  return all;
}

CommHook hook_of(const Case& c, const PowerSgd& power_sgd) {
  if (!c.power_sgd) return c.make();
  if (c.name.starts_with("batched")) return power_sgd.batched_hook();
  return c.name.starts_with("fp16") ? fp16_compress_hook(power_sgd.hook()) : power_sgd.hook();
}

Tensors parameters_of(const Checkpoint& file, std::size_t bucket) {
  Tensors parameters;
  for (std::size_t i = 0;; ++i) {
    const auto found = file.tensors.find("shape/" + std::to_string(bucket) + "." + std::to_string(i));
    if (found == file.tensors.end()) return parameters;
    parameters.push_back(at::empty(found->second.sizes().slice(1)));
  }
}

// What this rank's hook gives: by bucket, [step, element].
Tensors apply(const Case& c, const PowerSgd& power_sgd, const Checkpoint& file, const ProcessGroup& group) {
  const CommHook hook = hook_of(c, power_sgd);
  Tensors inputs;
  std::vector<Tensors> parameters, results(kBuckets);
  for (std::size_t i = 0; i < kBuckets; ++i) {
    inputs.push_back(parity::tensor_of(file, "in/" + std::to_string(i))[group.rank()]);
    parameters.push_back(parameters_of(file, i));
  }
  for (std::int64_t step = 0; step < inputs[0].size(0); ++step) {
    std::vector<BucketResult> pending;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      std::vector<std::string> names;
      for (std::size_t j = 0; j < parameters[i].size(); ++j) {
        names.push_back("p" + std::to_string(i) + "." + std::to_string(j));
      }
      GradBucket bucket(i, i + 1 == kBuckets, inputs[i][step].clone(), parameters[i], names);
      pending.push_back(hook(bucket, group));
    }
    for (std::size_t i = 0; i < kBuckets; ++i) results[i].push_back(pending[i]().to(at::kFloat).clone());
  }
  Tensors stacked;
  for (const Tensors& steps : results) stacked.push_back(at::stack(steps));
  return stacked;
}

void check_case(const Case& c, const Checkpoint& file, const ProcessGroup& group) {
  CAPTURE(c.name);
  PowerSgdOptions options = c.power_sgd.value_or(PowerSgdOptions());
  if (options.start_power_sgd_iter == PowerSgdOptions().start_power_sgd_iter) options.start_power_sgd_iter = 2;
  const PowerSgd power_sgd(options);
  const Tensors results = apply(c, power_sgd, file, group);
  const double tolerance = group.size() == 2 ? c.tolerance.two_ranks : c.tolerance.four_ranks;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    at::Tensor expected = parity::tensor_of(file, "out/" + c.name + "/" + std::to_string(i));
    if (c.name == "noop") expected = expected[group.rank()];
    CHECK(parity::difference(results[i], expected) <= tolerance);
    for (const at::Tensor& other : group.all_gather(results[i])) CHECK((c.name == "noop" || other.equal(results[i])));
  }
  if (!c.power_sgd) return;
  const at::Tensor& stats = parity::tensor_of(file, "stats/" + c.name);
  CHECK(power_sgd.compression_stats().elements_before == stats[0].item<std::int64_t>());
  CHECK(power_sgd.compression_stats().elements_after == stats[1].item<std::int64_t>());
}

void check_all(int ranks) {
  const auto file = load_checkpoint(std::string(PARITY_REFERENCE) + "/hooks_" + std::to_string(ranks) + ".safetensors",
                                    Integrity::if_present);
  std::string names;
  for (const Case& c : cases()) names += (names.empty() ? "" : ",") + c.name;
  CHECK(file.metadata.at("cases") == names);
  lockstep::testing::run_group_or_throw(ranks, lockstep::testing::Over::arena, [&](const ProcessGroup& group) {
    for (const Case& c : cases()) check_case(c, file, group);
  });
}

}  // namespace

TEST_CASE("communication hooks give what PyTorch's give: 2 ranks") { check_all(2); }

TEST_CASE("communication hooks give what PyTorch's give: 4 ranks") { check_all(4); }

}  // namespace hooks_test
