#include "lockstep/ddp/gradient_bucket.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <utility>

#include "lockstep/base/hash.h"
#include "lockstep/collective/arena_engine.h"
#include "lockstep/group/arena_allocator.h"
#include "lockstep/group/tensor_segments.h"

namespace lockstep {
namespace {

std::byte* address_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

// Whether the gradient's memory, read from front to back, has the parameter's elements in the parameter's order.
bool has_layout_of(const at::Tensor& gradient, const at::Tensor& parameter) {
  return gradient.is_non_overlapping_and_dense() &&
         (gradient.strides() == parameter.strides() || (gradient.is_contiguous() && parameter.is_contiguous()));
}

bool stays_in_place(const ProcessGroup& group, const at::Tensor& gradient, const at::Tensor& parameter) {
  return gradient.nbytes() >= kArenaTensorBytes && has_layout_of(gradient, parameter) && group.is_shared(gradient);
}

}  // namespace

GradientBucket::GradientBucket(std::string name, std::vector<at::Tensor> parameters)
    : name_(std::move(name)), parameters_(std::move(parameters)) {}

void GradientBucket::collect(const ProcessGroup& group) {
  copies_.clear();
  segments_.clear();
  copied_bytes_ = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (stays_in_place(group, gradient, parameters_[i])) continue;
    copies_.push_back({i, copied_bytes_});
    copied_bytes_ += gradient.nbytes();
  }
  if (copied_bytes_ != 0 && (!buffer_.defined() || buffer_.nbytes() < copied_bytes_)) {
    buffer_ = group.empty({static_cast<std::int64_t>(copied_bytes_)}, at::kByte);
  }
  auto copy = copies_.begin();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    std::byte* data = address_of(gradient);
    if (copy != copies_.end() && copy->parameter == i) {
      data = address_of(buffer_) + copy->offset;
      copy_in(i, copy->offset);
      ++copy;
    }
    if (!segments_.empty() && segments_.back().data + segments_.back().bytes == data) {
      segments_.back().bytes += gradient.nbytes();
    } else {
      segments_.push_back({data, gradient.nbytes()});
    }
  }
}

void GradientBucket::copy_in(std::size_t parameter, std::size_t offset) {
  const at::Tensor& gradient = parameters_[parameter].grad();
  at::Tensor dense = gradient;
  if (!has_layout_of(gradient, parameters_[parameter])) {
    dense = at::empty_like(parameters_[parameter]);
    dense.copy_(gradient);
  }
  std::memcpy(address_of(buffer_) + offset, dense.data_ptr(), dense.nbytes());
}

void GradientBucket::launch_in_arena(const ProcessGroup& group) {
  Collective collective;
  collective.kind = OpKind::all_reduce;
  collective.reduce = ReduceOp::avg;
  collective.dtype = dtype_of(parameters_.front(), "gradient reduction");
  collective.name = hash_of(name_);
  collective.output = segments_;
  std::size_t bytes = 0;
  for (const Segment& segment : segments_) bytes += segment.bytes;
  collective.count = bytes / element_size(collective.dtype);
  group.drive([&](ArenaEngine& engine) { ticket_ = engine.post(collective, Deadline::after(group.timeout())); });
}

void GradientBucket::launch(const ProcessGroup& group) {
  collect(group);
  if (group.shares_memory()) return launch_in_arena(group);
  pieces_.clear();
  const at::TensorOptions options = at::TensorOptions().dtype(parameters_.front().scalar_type());
  for (const Segment& segment : segments_) {
    const auto count = static_cast<std::int64_t>(segment.bytes / parameters_.front().element_size());
    pieces_.push_back(at::from_blob(segment.data, {count}, options));
  }
  work_ = group.all_reduce_async(pieces_, ReduceOp::avg, {.name = name_});
}

void GradientBucket::finish(const ProcessGroup& group) {
  if (group.shares_memory()) {
    group.drive([&](ArenaEngine& engine) { engine.wait(ticket_, Deadline::after(group.timeout())); });
  } else {
    work_.wait();
  }
  for (const Copy& copy : copies_) {
    const at::Tensor& parameter = parameters_[copy.parameter];
    const at::Tensor& gradient = parameter.grad();
    std::byte* source = address_of(buffer_) + copy.offset;
    if (has_layout_of(gradient, parameter)) {
      std::memcpy(gradient.data_ptr(), source, gradient.nbytes());
    } else {
      at::Tensor dense = at::empty_like(parameter);
      std::memcpy(dense.data_ptr(), source, dense.nbytes());
      gradient.copy_(dense);
    }
  }
  pieces_.clear();
}

}  // namespace lockstep
