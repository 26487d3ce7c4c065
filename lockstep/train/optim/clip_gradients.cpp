#include "lockstep/train/optim/clip_gradients.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/train/ddp/lockstep_mode/thread_count.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr double kEpsilon = 1e-6;  // PyTorch's, so that a norm of 0 divides

// The elements of a parameter's gradient, which share its memory; undefined if there are none. Of a sparse gradient
// those that it holds, each row once: the others are 0.
at::Tensor elements_of(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return {};
  if (gradient.is_sparse() && !gradient.is_coalesced()) gradient = gradient.detach().coalesce();
  const at::Tensor elements = gradient.is_sparse() ? gradient.detach()._values() : gradient.detach();
  return elements.numel() == 0 ? at::Tensor() : elements;
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor elements = elements_of(parameter);
    if (elements.defined()) gradients.push_back(std::move(elements));
  }
  return gradients;
}

// One thread for each norm: with several, sums have other bits. In a parallel region torch's operators use one.
std::vector<at::Tensor> norms_of(const std::vector<at::Tensor>& gradients, double norm_type) {
  std::vector<at::Tensor> norms(gradients.size());
  const auto norms_from = [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); std::cmp_less(i, end); ++i) {
      norms[i] = at::linalg_vector_norm(gradients[i], norm_type).to(gradients.front().device());
    }
  };
  if (gradients.size() > 1 && std::ranges::all_of(gradients, &at::Tensor::is_cpu)) {
    at::parallel_for(0, std::ssize(gradients), 1, norms_from);
  } else {
    const ThreadCount one_thread(1);
    norms_from(0, std::ssize(gradients));
  }
  return norms;
}

// The norm of the norms, in PyTorch's order of operations.
at::Tensor norm_of(const std::vector<at::Tensor>& gradients, double norm_type) {
  if (gradients.empty()) return at::full({}, 0.0, at::kFloat);
  const std::vector<at::Tensor> norms = norms_of(gradients, norm_type);
  const ThreadCount one_thread(1);
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

void scale(const std::vector<at::Tensor>& gradients, double max_norm, const at::Tensor& norm) {
  const at::Tensor factor = norm.add(kEpsilon).reciprocal().mul(max_norm).clamp_max(1.0);
  for (const at::Tensor& gradient : gradients) gradient.mul_(factor.to(gradient.device()));
}

void check(double norm_type, const char* operation = "clip_grad_norm") {
  if (norm_type > 0) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{}: norm_type is {}; it must be above 0: use 1, 2 or infinity", operation, norm_type));
}

// The gradients that make the norm infinite or NaN.
std::string non_finite_norms(const std::vector<at::Tensor>& parameters, double norm_type) {
  std::string non_finite;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor elements = elements_of(parameters[i]);
    if (!elements.defined()) continue;
    const double norm = at::linalg_vector_norm(elements, norm_type).item<double>();
    if (!std::isfinite(norm))
      non_finite += fmt::format("\n  parameter {} {}: {}", i, parameters[i].sizes().vec(), norm);
  }
  return non_finite;
}

[[noreturn]] void refuse(double norm, double norm_type, const std::string& non_finite) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("clip_grad_norm: the norm of order {} of the gradients is {}, so they are not clipped. Norms "
                          "that are not finite:{}",
                          norm_type, norm,
                          non_finite.empty() ? "\n  no single gradient; the total norm overflowed" : non_finite));
}

}  // namespace

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, const ClipOptions& options) {
  check(options.norm_type);
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  const at::Tensor norm = norm_of(gradients, options.norm_type);
  const double value = norm.item<double>();
  if (options.error_if_nonfinite && !std::isfinite(value)) {
    refuse(value, options.norm_type, non_finite_norms(parameters, options.norm_type));
  }
  scale(gradients, max_norm, norm);
  return value;
}

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, const ProcessGroup& group,
                      const ClipOptions& options) {
  check(options.norm_type);
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  const at::Tensor mine = norm_of(gradients, options.norm_type);
  // Gathered rather than added up: powers of large norms would overflow, and each rank can name the rank with the bad
  // one.
  const std::vector<at::Tensor> parts = group.all_gather(mine.to(at::kCPU, at::kDouble), {.name = "clip_grad_norm"});
  const double value = at::linalg_vector_norm(at::stack(parts), options.norm_type).item<double>();
  if (options.error_if_nonfinite && !std::isfinite(value)) {
    std::string non_finite;
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      const double part = parts[rank].item<double>();
      if (!std::isfinite(part)) non_finite += fmt::format("\n  rank {}: {}", rank, part);
    }
    if (!std::isfinite(mine.item<double>())) {
      non_finite += fmt::format("\nOn this rank, {}:{}", group.rank(), non_finite_norms(parameters, options.norm_type));
    }
    refuse(value, options.norm_type, non_finite);
  }
  scale(gradients, max_norm, at::full({}, value, mine.options()));
  return value;
}

at::Tensor get_total_norm(const std::vector<at::Tensor>& tensors, double norm_type) {
  check(norm_type, "get_total_norm");
  std::vector<at::Tensor> elements;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    elements.push_back(tensor.is_sparse() ? tensor.detach().coalesce()._values() : tensor.detach());
  }
  return norm_of(elements, norm_type);
}

void clip_grads_with_norm(const std::vector<at::Tensor>& parameters, double max_norm, const at::Tensor& total_norm) {
  scale(gradients_of(parameters), max_norm, total_norm);
}

void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) {
  for (const at::Tensor& gradient : gradients_of(parameters)) gradient.clamp_(-clip_value, clip_value);
}

}  // namespace lockstep
