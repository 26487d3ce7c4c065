#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <memory>
#include <optional>
#include <utility>

#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/comm/group/arena_allocator.h"
#include "lockstep/comm/group/device_streams.h"
#include "lockstep/comm/group/sole_owner.h"
#include "lockstep/comm/group/tensor_segments.h"
#include "lockstep/train/ddp/autograd/gradient_hooks.h"
#include "lockstep/train/ddp/buckets/gradient_bucket.h"

namespace lockstep::internal {
namespace {

class InPlaceBucket final : public GradientBucket {
 public:
  using GradientBucket::GradientBucket;

 private:
  // A member whose gradient is not reduced in place.
  struct Copy {
    std::size_t member;
    at::Tensor values = {};   // part of buffer_, laid out as the parameter
    at::Tensor operand = {};  // all consecutive copies from here; undefined within such a run
  };
  // Memory that other ranks may write to until the collective is finished.
  using Operands = std::vector<at::Tensor>;

  void do_launch(const Launch& launch) override {
    const at::NoGradGuard no_grad;
    collect(launch);
    work_.reset();
    if (operands_->front().is_cpu()) {
      posted_ = launch.group.post(collective(), operands_);
    } else {
      work_ = launch.group.all_reduce_async(*operands_, ReduceOp::avg, call());
    }
  }

  void do_finish(const Finish& finish) override {
    const at::NoGradGuard no_grad;
    wait(finish.group);
    for (const Copy& copy : copies_) {
      const BucketMember& member = members_[copy.member];
      if (!is_used(finish, member)) continue;
      at::Tensor& gradient = member.parameter.mutable_grad();
      if (lies_at(gradient, copy.values)) continue;
      if (buffer_.is_cpu()) {
        if (!gradient.defined()) gradient = at::empty_like(member.parameter);
        gradient.copy_(copy.values);
      } else {
        note_use(gradient);
        gradient = copy.values.variable_data();  // which counts its own versions
      }
    }
    note_use(buffer_);
    if (finish.factor == 1 && finish.factors == nullptr) return;
    for (const BucketMember& member : members_) {
      if (is_used(finish, member)) member.parameter.mutable_grad().mul_(factor_of(finish, member));
    }
  }

  void do_drop(const ProcessGroup& group) override { wait(group); }

  static bool stays_in_place(const Launch& launch, const BucketMember& member) {
    const at::Tensor& gradient = member.parameter.grad();
    return member.fired && launch.instead == nullptr && gradient.defined() && gradient.nbytes() >= kArenaTensorBytes &&
           has_layout_of(gradient, member.parameter) && launch.group.is_shared(gradient) &&
           owns_gradient(gradient, launch.added);
  }

  void collect(const Launch& launch) {
    if (operands_.use_count() != 1) operands_ = std::make_shared<Operands>();  // a failed group still has the last ones
    operands_->clear();
    plan_copies(launch);
    auto copy = copies_.begin();
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const bool is_copied = copy != copies_.end() && copy->member == i;
      const at::Tensor& gradient = contribution(launch, members_[i]);
      const bool has_values = gradient.defined();
      if (has_values) look_for_non_finite(launch, members_[i], gradient);
      if (!is_copied) {
        operands_->push_back(gradient);
        continue;
      }
      if (has_values) {
        if (!lies_at(gradient, copy->values)) {
          copy->values.copy_(gradient);
        } else if (!members_[i].fired) {
          members_[i].parameter.mutable_grad() = gradient.clone();  // which it keeps, if no rank uses it
        }
      } else {
        copy->values.zero_();
      }
      if (copy->operand.defined()) operands_->push_back(copy->operand);
      ++copy;
    }
    note_use(buffer_);
  }

  // A parameter may be given other strides between backwards.
  static bool is_laid_out_as(const at::Tensor& values, const at::Tensor& parameter) {
    return parameter.is_non_overlapping_and_dense() ? has_layout_of(values, parameter) : values.is_contiguous();
  }

  // Which members are copied, and where to. That rarely changes from one backward to the next.
  void plan_copies(const Launch& launch) {
    std::size_t copies = 0;
    bool is_as_before = true;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (stays_in_place(launch, members_[i])) continue;
      copied_bytes_ += members_[i].parameter.nbytes();
      is_as_before = is_as_before && copies < copies_.size() && copies_[copies].member == i &&
                     is_laid_out_as(copies_[copies].values, members_[i].parameter);
      if (!is_as_before) {
        copies_.resize(copies);
        copies_.push_back({.member = i});
      }
      ++copies;
    }
    const bool is_free = buffer_.defined() && (buffer_.is_cpu() || !has_other_owner());
    if (is_as_before && copies == copies_.size() && is_free) return;
    copies_.resize(copies);
    if (!is_free || !buffer_.is_cpu()) {  // a device's gradients may lie there as it was
      note_use(buffer_);
      buffer_.reset();
    }
    place_copies(launch.group);
  }

  static bool lies_at(const at::Tensor& gradient, const at::Tensor& values) {
    return gradient.defined() && gradient.has_storage() && gradient.is_alias_of(values) &&
           gradient.const_data_ptr() == values.const_data_ptr() && gradient.strides() == values.strides();
  }

  // Gradients of a device are parts of the buffer. Whether somebody else has such a part, of an earlier backward, or a
  // gradient has another parameter's.
  bool has_other_owner() const {
    std::size_t known = 1;
    for (const Copy& copy : copies_) {
      known += (copy.values.defined() ? 1 : 0) + (copy.operand.defined() ? 1 : 0);
      if (copy.values.defined() && lies_at(members_[copy.member].parameter.grad(), copy.values)) ++known;
    }
    return buffer_.storage().use_count() > known;
  }

  void place_copies(const ProcessGroup& group) {
    std::int64_t count = 0;
    for (const Copy& copy : copies_) count += members_[copy.member].parameter.numel();
    const at::Tensor& first = members_.front().parameter;
    if (!buffer_.defined() || buffer_.numel() < count) {
      buffer_ = new_buffer(group, count, first.scalar_type());
    }
    std::int64_t offset = 0, begin = 0;
    for (std::size_t i = 0, run = 0; i < copies_.size(); ++i) {
      const at::Tensor& parameter = members_[copies_[i].member].parameter;
      const at::Tensor part = buffer_.narrow(0, offset, parameter.numel());
      copies_[i].values = parameter.is_non_overlapping_and_dense()
                              ? part.as_strided(parameter.sizes(), parameter.strides())
                              : part.view(parameter.sizes());
      offset += parameter.numel();
      const bool ends_run = i + 1 == copies_.size() || copies_[i + 1].member != copies_[i].member + 1;
      if (!ends_run) continue;
      copies_[run].operand = buffer_.narrow(0, begin, offset - begin);
      begin = offset;
      run = i + 1;
    }
  }

  Collective collective() {
    segments_.clear();
    for (const at::Tensor& operand : *operands_) {
      segments_.push_back({static_cast<std::byte*>(operand.data_ptr()), static_cast<std::size_t>(operand.nbytes())});
    }
    Collective collective;
    collective.kind = OpKind::all_reduce;
    collective.reduce = ReduceOp::avg;
    collective.dtype = dtype_of(members_.front().parameter, "gradient reduction");
    collective.name = note_name(call().name);
    collective.number = call().number;
    collective.output = segments_;
    std::size_t bytes = 0;
    for (const Segment& segment : segments_) bytes += segment.bytes;
    collective.count = bytes / element_size(collective.dtype);
    return collective;
  }

  void wait(const ProcessGroup& group) {
    if (work_) {
      work_->wait();
    } else {
      group.wait(posted_);
    }
    operands_->clear();
  }

  // Of the last launch.
  std::vector<Copy> copies_;
  std::vector<Segment> segments_;
  std::shared_ptr<Operands> operands_ = std::make_shared<Operands>();
  at::Tensor buffer_;  // of the parameters' type and device; grows to the size of copies
  ProcessGroup::Posted posted_;
  std::optional<Work> work_;  // instead, of a device's buffer
};

}  // namespace

std::unique_ptr<GradientBucket> make_in_place_bucket(std::size_t index, std::vector<BucketMember> members,
                                                     std::uint64_t wrapper) {
  return std::make_unique<InPlaceBucket>(index, std::move(members), wrapper);
}

}  // namespace lockstep::internal
