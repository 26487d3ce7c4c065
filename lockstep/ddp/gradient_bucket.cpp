#include "lockstep/ddp/gradient_bucket.h"

#include <utility>

#include "lockstep/ddp/finite.h"

namespace lockstep {

GradientBucket::GradientBucket(std::size_t index, std::vector<BucketMember> members)
    : index_(index), name_(bucket_name(index)), members_(std::move(members)) {}

void GradientBucket::reset() {
  for (BucketMember& member : members_) member.is_ready = member.fired = false;
  ready_ = 0;
  launched_ = false;
}

void GradientBucket::set_ready(std::size_t member, bool fired) {
  BucketMember& one = members_[member];
  one.fired = one.fired || fired;
  if (std::exchange(one.is_ready, true)) return;
  ++ready_;
}

void GradientBucket::launch(const Launch& launch) {
  launched_ = true;
  copied_bytes_ = 0;
  non_finite_.reset();
  do_launch(launch);
}

std::size_t GradientBucket::bytes() const {
  std::size_t sum = 0;
  for (const BucketMember& member : members_) sum += member.parameter.nbytes();
  return sum;
}

bool GradientBucket::contributes(const Launch& launch, const BucketMember& member) {
  return !launch.silent && member.parameter.grad().defined();
}

void GradientBucket::look_at(const Launch& launch, const BucketMember& member, const at::Tensor& values) {
  if (launch.look_for_non_finite && !non_finite_ && !all_finite(values)) non_finite_ = member.index;
}

}  // namespace lockstep
