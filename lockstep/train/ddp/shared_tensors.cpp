#include "lockstep/train/ddp/shared_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>

#include "lockstep/comm/group/overlap.h"

namespace lockstep::internal {
namespace {

constexpr std::uintptr_t kAlignment = 64;

struct Span {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  const TensorsByName::value_type* item = nullptr;
};

// Empty where there is no memory that could be shared.
Span span_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_meta() || tensor.numel() == 0) return {};
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  return {.begin = begin, .end = begin + static_cast<std::uintptr_t>(last + 1) * tensor.element_size()};
}

// Lies in other memory as `tensor` lies in its own.
at::Tensor laid_in(const at::Tensor& memory, std::uintptr_t memory_begin, const at::Tensor& tensor) {
  auto* const bytes = static_cast<std::byte*>(memory.mutable_data_ptr());
  return at::from_blob(bytes + (span_of(tensor).begin - memory_begin), tensor.sizes(), tensor.strides(),
                       tensor.options().requires_grad(false));
}

at::Tensor bytes_of_copy(const at::Tensor& tensor) {
  return tensor.clone(at::MemoryFormat::Contiguous).view({-1}).view(at::kByte);
}

}  // namespace

SharedNames shared_names(const TensorsByName& tensors) {
  std::vector<Span> spans;
  for (const auto& item : tensors) {
    Span span = span_of(item.second);
    span.item = &item;
    if (span.begin != span.end) spans.push_back(span);
  }
  std::ranges::stable_sort(spans, {}, &Span::begin);
  SharedNames shared;
  std::vector<Span> before;  // that reach as far as the present one, or further
  for (const Span& span : spans) {
    std::erase_if(before, [&](const Span& each) { return each.end <= span.begin; });
    for (const Span& each : before) {
      if (each.item->second.device() != span.item->second.device()) continue;
      if (overlap(each.item->second, span.item->second)) shared.emplace_back(each.item->first, span.item->first);
    }
    before.push_back(span);
  }
  return shared;
}

bool can_hold_both(const at::Tensor& one, const at::Tensor& its_value, const at::Tensor& other,
                   const at::Tensor& other_value) {
  const at::NoGradGuard no_grad;
  const Span mine = span_of(one), theirs = span_of(other);
  const std::uintptr_t begin = std::min(mine.begin, theirs.begin) / kAlignment * kAlignment;
  const auto bytes = static_cast<std::int64_t>(std::max(mine.end, theirs.end) - begin);
  const at::Tensor memory = at::empty({bytes}, one.options().dtype(at::kByte).requires_grad(false));
  const at::Tensor in_copy = laid_in(memory, begin, one);
  in_copy.copy_(its_value);
  const at::Tensor before = bytes_of_copy(in_copy);
  laid_in(memory, begin, other).copy_(other_value);
  return at::equal(before, bytes_of_copy(in_copy));
}

}  // namespace lockstep::internal
