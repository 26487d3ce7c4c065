#include "lockstep/train/ddp/buckets/gradient_bucket.h"

#include <ATen/ops/empty.h>

#include <cstdint>
#include <utility>

namespace lockstep::internal {
namespace {

std::string call_name_of(std::size_t index, const std::vector<BucketMember>& members, std::uint64_t wrapper) {
  std::vector<std::string> names;
  for (const BucketMember& member : members) names.push_back(member.name);
  return bucket_call_name(index, names, {}, wrapper);
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

}  // namespace lockstep::internal
