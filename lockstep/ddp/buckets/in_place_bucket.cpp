#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <cstring>
#include <memory>
#include <utility>

#include "lockstep/ddp/autograd/gradient_hooks.h"
#include "lockstep/ddp/buckets/gradient_bucket.h"
#include "lockstep/ddp/buckets/gradient_layout.h"
#include "lockstep/group/arena_allocator.h"
#include "lockstep/group/tensor_segments.h"
#include "lockstep/observe/process_recorder.h"

namespace lockstep {
namespace {

std::byte* address_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

class InPlaceBucket final : public GradientBucket {
 public:
  using GradientBucket::GradientBucket;

 private:
  struct Copy {
    std::size_t member;
    std::size_t offset;  // in buffer_
  };
  // Memory that other ranks may write to until the collective is finished.
  using Lent = std::vector<at::Tensor>;

  void do_finish(const Finish& finish) override {
    const at::NoGradGuard no_grad;
    wait(finish.group);
    for (const Copy& copy : copies_) {
      if (is_used(finish, members_[copy.member])) copy_out(members_[copy.member].parameter, copy.offset);
    }
    if (finish.factor == 1) return;
    for (const BucketMember& member : members_) {
      if (is_used(finish, member)) member.parameter.mutable_grad().mul_(finish.factor);
    }
  }

  void do_drop(const ProcessGroup& group) override { wait(group); }

  void do_launch(const Launch& launch) override {
    collect(launch);
    posted_ = launch.group.post(collective(), lent_);
  }

  static bool stays_in_place(const Launch& launch, const BucketMember& member) {
    if (!member.fired || !contributes(launch, member)) return false;
    const at::Tensor& gradient = member.parameter.grad();
    return gradient.nbytes() >= kArenaTensorBytes && has_layout_of(gradient, member.parameter) &&
           launch.group.is_shared(gradient) && owns_gradient(gradient, launch.added);
  }

  void collect(const Launch& launch) {
    copies_.clear();
    segments_.clear();
    if (lent_.use_count() != 1) lent_ = std::make_shared<Lent>();  // a failed group still has the last ones
    lent_->clear();
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (stays_in_place(launch, members_[i])) continue;
      copies_.push_back({i, copied_bytes_});
      copied_bytes_ += members_[i].parameter.nbytes();
    }
    if (copied_bytes_ != 0 && (!buffer_.defined() || buffer_.nbytes() < copied_bytes_)) {
      buffer_ = launch.group.empty({static_cast<std::int64_t>(copied_bytes_)}, at::kByte);
    }
    if (copied_bytes_ != 0) lent_->push_back(buffer_);
    auto copy = copies_.begin();
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const BucketMember& member = members_[i];
      const bool has_values = contributes(launch, member);
      if (has_values) look_at(launch, member, member.parameter.grad());
      std::byte* data = nullptr;
      if (copy != copies_.end() && copy->member == i) {
        data = address_of(buffer_) + copy->offset;
        if (has_values) {
          copy_in(member.parameter, data);
        } else {
          std::memset(data, 0, member.parameter.nbytes());
        }
        ++copy;
      } else {
        data = address_of(member.parameter.grad());
        lent_->push_back(member.parameter.grad());
      }
      append_segment({data, member.parameter.nbytes()});
    }
  }

  void append_segment(const Segment& segment) {
    if (!segments_.empty() && segments_.back().data + segments_.back().bytes == segment.data) {
      segments_.back().bytes += segment.bytes;
    } else {
      segments_.push_back(segment);
    }
  }

  static void copy_in(const at::Tensor& parameter, std::byte* data) {
    at::Tensor dense = parameter.grad();
    const at::NoGradGuard no_grad;
    if (!has_layout_of(dense, parameter)) {
      dense = at::empty_like(parameter);
      dense.copy_(parameter.grad());
    }
    std::memcpy(data, dense.data_ptr(), dense.nbytes());
  }

  void copy_out(const at::Tensor& parameter, std::size_t offset) const {
    const std::byte* source = address_of(buffer_) + offset;
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) gradient = at::empty_like(parameter);
    if (has_layout_of(gradient, parameter)) {
      std::memcpy(gradient.data_ptr(), source, gradient.nbytes());
    } else {
      at::Tensor dense = at::empty_like(parameter);
      std::memcpy(dense.data_ptr(), source, dense.nbytes());
      gradient.copy_(dense);
    }
  }

  Collective collective() const {
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
    group.wait(posted_);
    lent_->clear();
  }

  // Of the last launch.
  std::vector<Copy> copies_;
  std::vector<Segment> segments_;
  std::shared_ptr<Lent> lent_ = std::make_shared<Lent>();
  at::Tensor buffer_;  // uint8, grows to what copies need
  ProcessGroup::Posted posted_;
};

}  // namespace

std::unique_ptr<GradientBucket> make_in_place_bucket(std::size_t index, std::vector<BucketMember> members) {
  return std::make_unique<InPlaceBucket>(index, std::move(members));
}

}  // namespace lockstep
