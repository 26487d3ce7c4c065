#include "lockstep/train/ddp/checks/all_finite.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lockstep::internal {
namespace {

// NaN and Inf are those whose exponent has all bits set. The sum of the comparisons needs no branch in the loop, which
// compilers then vectorise; a block at a time, so that the first bad one ends it.
template <class Word, Word kExponent>
bool all_finite(const std::byte* data, std::size_t bytes) {
  constexpr std::size_t kBlock = 4096 / sizeof(Word);
  const std::size_t count = bytes / sizeof(Word);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t end = count - begin < kBlock ? count : begin + kBlock;
    Word bad = 0;
    for (std::size_t i = begin; i < end; ++i) {
      Word word;
      std::memcpy(&word, data + i * sizeof word, sizeof word);
      bad |= static_cast<Word>((word & kExponent) == kExponent);
    }
    if (bad != 0) return false;
  }
  return true;
}

}  // namespace

bool all_finite(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return at::isfinite(tensor).all().item<bool>();
  const at::Tensor dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
  const auto* data = static_cast<const std::byte*>(dense.const_data_ptr());
  switch (dense.scalar_type()) {
    case at::kFloat:
    case at::kComplexFloat: return all_finite<std::uint32_t, 0x7F800000>(data, dense.nbytes());
    case at::kDouble:
    case at::kComplexDouble: return all_finite<std::uint64_t, 0x7FF0000000000000>(data, dense.nbytes());
    case at::kHalf: return all_finite<std::uint16_t, 0x7C00>(data, dense.nbytes());
    case at::kBFloat16: return all_finite<std::uint16_t, 0x7F80>(data, dense.nbytes());
    default: return true;
  }
}

void FiniteCheck::add(const at::Tensor& values, std::size_t index) {
  if (found_) return;
  if (values.is_cpu()) {
    if (!all_finite(values)) found_ = index;
    return;
  }
  const at::Tensor answer = at::isfinite(values).all();
  indices_.push_back(index);
  answers_.push_back(answers_.empty() ? answer : answer.to(answers_.front().device(), /*non_blocking=*/true));
}

void FiniteCheck::clear() {
  found_.reset();
  indices_.clear();
  answers_.clear();
}

std::pair<FiniteCheck::First, FiniteCheck::First> FiniteCheck::ask(const FiniteCheck& one, const FiniteCheck& other) {
  std::vector<at::Tensor> answers = one.answers_;
  for (const at::Tensor& each : other.answers_) {
    answers.push_back(answers.empty() ? each : each.to(answers.front().device(), /*non_blocking=*/true));
  }
  if (answers.empty()) return {one.found_, other.found_};
  const at::Tensor told = at::stack(answers).to(at::kCPU);
  const bool* next = told.const_data_ptr<bool>();
  const auto first_of = [&next](const FiniteCheck& check) {
    First first = check.found_;
    for (const std::size_t index : check.indices_) {
      if (!*next++ && !first) first = index;
    }
    return first;
  };
  const First of_one = first_of(one);
  return {of_one, first_of(other)};
}

}  // namespace lockstep::internal
