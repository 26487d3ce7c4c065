#include "lockstep/ddp/buckets/gradient_bucket.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>

#include <cstdint>
#include <cstring>
#include <utility>

namespace lockstep::internal {
namespace {

std::string call_name_of(std::size_t index, const std::vector<BucketMember>& members, std::uint64_t wrapper) {
  std::vector<std::string> names;
  for (const BucketMember& member : members) names.push_back(member.name);
  return bucket_call_name(index, names, {}, wrapper);
}

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

GradientBucket::GradientBucket(std::size_t index, std::vector<BucketMember> members, std::uint64_t wrapper)
    : index_(index),
      wrapper_(wrapper),
      members_(std::move(members)),
      call_name_(call_name_of(index, members_, wrapper)) {}

void GradientBucket::reset() {
  for (BucketMember& member : members_) member.is_ready = member.fired = false;
  ready_ = 0;
  stage_ = Stage::waiting;
}

void GradientBucket::set_ready(std::size_t member, bool fired) {
  BucketMember& one = members_[member];
  one.fired = one.fired || fired;
  if (std::exchange(one.is_ready, true)) return;
  ++ready_;
}

void GradientBucket::launch(const Launch& launch) {
  copied_bytes_ = 0;
  non_finite_.reset();
  backward_ = launch.backward;
  do_launch(launch);
  stage_ = Stage::launched;
}

void GradientBucket::finish(const Finish& finish) {
  do_finish(finish);
  stage_ = Stage::finished;
}

void GradientBucket::drop(const ProcessGroup& group) {
  if (stage_ == Stage::launched) do_drop(group);
  stage_ = Stage::finished;
}

std::size_t GradientBucket::bytes() const {
  std::size_t sum = 0;
  for (const BucketMember& member : members_) sum += member.parameter.nbytes();
  return sum;
}

at::Tensor GradientBucket::new_buffer(const ProcessGroup& group, std::int64_t count, at::ScalarType dtype) const {
  const at::Device device = members_.front().parameter.device();
  if (device.is_cpu()) return group.empty({count}, dtype);
  return at::empty({count}, at::TensorOptions().device(device).dtype(dtype));
}

void GradientBucket::look_for_non_finite(const Launch& launch, const BucketMember& member, const at::Tensor& values) {
  if (launch.look_for_non_finite && !non_finite_ && !all_finite(values)) non_finite_ = member.index;
}

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

}  // namespace lockstep::internal
