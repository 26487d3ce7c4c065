#include "lockstep/train/ddp/lockstep_mode/arithmetic.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <cstdint>

#include "lockstep/base/environment.h"
#include "lockstep/base/format.h"
#include "lockstep/base/hash.h"
#include "lockstep/train/ddp/lockstep_mode/thread_count.h"

namespace lockstep::internal {
namespace {

using Facts = std::vector<std::pair<std::string, std::string>>;

// Variables that choose kernels, or the type in which they compute.
constexpr const char* kOfKernels[] = {
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_CPU_ISA_HINTS",
    "DNNL_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_DEBUG_CPU_TYPE",
    "TORCH_MKLDNN_MATMUL_MIN_DIM",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_WORKSPACE_CONFIG",
};
// Variables that make a team of threads smaller than asked for.
constexpr const char* kOfThreads[] = {"OMP_DYNAMIC", "OMP_THREAD_LIMIT", "MKL_DYNAMIC"};

std::string yes_or_no(bool is_so) { return is_so ? "yes" : "no"; }

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

void add_environment(Facts& facts, const char* name) {
  facts.emplace_back(name, one_line(EnvironmentReader().text(name).value_or("not set")));
}

// Whether the calling thread flushes denormal numbers to zero.
bool flushes_denormals() {
  volatile float tiny = 1e-39F;
  tiny = tiny * 1.0F;
  return tiny == 0;
}

void add_settings(Facts& facts) {
  const at::Context& context = at::globalContext();
  const auto precision = [&](at::Float32Op op) {
    return at::precision2str(context.float32Precision(at::Float32Backend::MKLDNN, op));
  };
  facts.emplace_back("torch", TORCH_VERSION);
  facts.emplace_back("vector instructions", at::get_cpu_capability());
  facts.emplace_back("MKL", one_line(at::get_mkl_version()));
  facts.emplace_back("oneDNN", one_line(at::get_mkldnn_version()));
  facts.emplace_back("oneDNN in use", yes_or_no(context.userEnabledMkldnn()));
  facts.emplace_back("oneDNN deterministic", yes_or_no(context.deterministicMkldnn()));
  facts.emplace_back("NNPACK in use", yes_or_no(context.userEnabledNNPACK()));
  facts.emplace_back("float32 in convolutions", precision(at::Float32Op::CONV));
  facts.emplace_back("float32 in matrix products", precision(at::Float32Op::MATMUL));
  facts.emplace_back("float32 in recurrent layers", precision(at::Float32Op::RNN));
  facts.emplace_back("float16 sums in float16", yes_or_no(context.allowFP16ReductionCPU()));
  facts.emplace_back("flash attention", yes_or_no(context.userEnabledFlashSDP()));
  facts.emplace_back("deterministic algorithms", yes_or_no(context.deterministicAlgorithms()));
  facts.emplace_back("denormal numbers flushed to zero", yes_or_no(flushes_denormals()));
}

// The same numbers everywhere, between -0.5 and 0.5, by no kernel.
at::Tensor host_numbers(at::IntArrayRef sizes, std::uint32_t seed) {
  at::Tensor tensor = at::empty(sizes, at::kFloat);
  auto* values = tensor.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    const std::uint32_t mixed = (static_cast<std::uint32_t>(i) + seed * 7919U) * 2654435761U;
    values[i] = static_cast<float>(mixed >> 12U) / static_cast<float>(1U << 20U) - 0.5F;
  }
  return tensor;
}

void bits_of(Facts& facts, const std::string& kernels, std::initializer_list<at::Tensor> results) {
  std::string hashes;
  for (const at::Tensor& result : results) {
    const at::Tensor dense = result.cpu().contiguous();
    hashes += fmt::format("{:x}", hash_of({static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()}));
  }
  facts.emplace_back(fmt::format("bits of {}", kernels), fmt::format("{:016x}", hash_of(hashes)));
}

void add_bits_of_kernels(Facts& facts, at::Device device) {
  const at::NoGradGuard no_grad;
  const auto add_bits = [&](const std::string& kernels, std::initializer_list<at::Tensor> results) {
    const std::string where = device.is_cpu() ? "" : " on " + c10::DeviceTypeName(device.type(), /*lower_case=*/true);
    bits_of(facts, kernels + where, results);
  };
  const auto numbers = [&](at::IntArrayRef sizes, std::uint32_t seed) {
    return host_numbers(sizes, seed).to(device);
  };
  const ThreadCount one_thread(1);
  const at::Tensor left = numbers({37, 150}, 1), right = numbers({150, 70}, 2);
  add_bits("matrix products",
           {at::matmul(left, right), at::linear(left, right.t().contiguous(), numbers({70}, 3)),
            at::matmul(left.to(at::kDouble), right.to(at::kDouble)),
            at::matmul(left.to(at::kBFloat16), right.to(at::kBFloat16))});

  const at::Tensor image = numbers({2, 6, 11, 11}, 4);
  if (device.is_cpu() || device.is_cuda()) {  // torch has none for devices of other libraries
    const at::Tensor weight = numbers({8, 6, 3, 3}, 5);
    constexpr std::int64_t kOne[] = {1, 1}, kNone[] = {0, 0};
    const at::Tensor output = at::convolution(image, weight, numbers({8}, 6), kOne, kOne, kOne, false, kNone, 1);
    const auto [of_image, of_weight, of_bias] =
        at::convolution_backward(numbers(output.sizes(), 7), image, weight, at::IntArrayRef{8}, kOne, kOne, kOne, false,
                                 kNone, 1, {true, true, true});
    add_bits("convolutions", {output, of_image, of_weight, of_bias});
  }

  add_bits("functions",
           {at::exp(left), at::log(left.add(1)), at::tanh(left), at::sigmoid(left), at::gelu(left),
            at::_softmax(left, 1, false)});
  const at::Tensor many = numbers({40, 500}, 8);
  add_bits("sums", {at::sum(many), at::sum(many, 0), at::sum(many, 1), at::sum(many.to(at::kDouble))});

  const at::Tensor scale = numbers({6}, 9).add_(1);
  const auto [normal, mean, invstd] = at::native_batch_norm(image, scale, scale, {}, {}, true, 0.1, 1e-5);
  const auto [of_input, of_scale, of_shift] = at::native_batch_norm_backward(
      numbers(image.sizes(), 10), image, scale, {}, {}, mean, invstd, true, 1e-5, {true, true, true});
  add_bits("batch norms", {normal, mean, invstd, of_input, of_scale, of_shift});
}

std::string value_in(const Arithmetic& arithmetic, const std::string& name) {
  for (const auto& [known, value] : arithmetic.facts) {
    if (known == name) return value;
  }
  return "nothing";
}

}  // namespace

Arithmetic arithmetic_here(int threads, const std::vector<at::Device>& devices) {
  // The libraries read these once, so a later change of the environment changes no bits.
  static const Facts kernels = [] {
    Facts facts;
    for (const char* name : kOfKernels) add_environment(facts, name);
    return facts;
  }();
  Arithmetic arithmetic;
  add_settings(arithmetic.facts);
  arithmetic.facts.insert(arithmetic.facts.end(), kernels.begin(), kernels.end());
  if (threads > 1) {
    for (const char* name : kOfThreads) add_environment(arithmetic.facts, name);
  }
  add_bits_of_kernels(arithmetic.facts, at::kCPU);
  for (const at::Device device : devices) add_bits_of_kernels(arithmetic.facts, device);
  return arithmetic;
}

std::string text_of(const Arithmetic& arithmetic) {
  std::string text;
  for (const auto& [name, value] : arithmetic.facts) text += fmt::format("{}: {}\n", name, value);
  return text;
}

Arithmetic parse_arithmetic(std::string_view text) {
  Arithmetic arithmetic;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (const auto colon = line.find(": "); colon != std::string_view::npos) {
      arithmetic.facts.emplace_back(line.substr(0, colon), line.substr(colon + 2));
    }
  }
  return arithmetic;
}

std::vector<std::string> changes(const Arithmetic& before, const Arithmetic& now) {
  std::vector<std::string> found;
  const auto note = [&](const std::string& name) {
    const std::string old = value_in(before, name), current = value_in(now, name);
    if (old != current) found.push_back(fmt::format("{}: {}, now {}", name, old, current));
  };
  for (const auto& [name, value] : before.facts) note(name);
  for (const auto& [name, value] : now.facts) {
    if (value_in(before, name) == "nothing") note(name);
  }
  return found;
}

}  // namespace lockstep::internal
