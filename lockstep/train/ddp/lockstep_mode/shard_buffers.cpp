#include "lockstep/train/ddp/lockstep_mode/shard_buffers.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "lockstep/base/format.h"
#include "lockstep/base/hash.h"
#include "lockstep/train/ddp/lockstep_mode/mode.h"

namespace lockstep::internal {
namespace {

bool is_averaged(const at::Tensor& buffer) { return at::isFloatingType(buffer.scalar_type()); }

// The tensor itself, or the values of one that lies scattered.
at::Tensor dense(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor : at::empty_like(tensor).copy_(tensor.detach());
}

// Of a dense tensor into one of the same shape, dense or not; autograd does not see it.
void copy_values(const at::Tensor& to, const at::Tensor& from) {
  if (!to.is_non_overlapping_and_dense()) {
    to.data().copy_(from);
  } else if (!from.is_cpu()) {
    to.data().copy_(from);
  } else if (from.nbytes() != 0) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  }
}

// REQUIRES: it lies in the host's memory.
std::string_view bytes_of(const at::Tensor& dense) {
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

// A buffer that grows or shrinks, such as a queue, has no mean, nor a value from before the step.
void require_same_shape(const std::string& name, const at::Tensor& now, const at::Tensor& before) {
  if (now.sizes() == before.sizes() && now.strides() == before.strides() && now.scalar_type() == before.scalar_type()) {
    return;
  }
  throw lockstep_mode_error(
      fmt::format("a shard changed the shape, layout or dtype of buffer {}: it is {} {} and was {} {}; give it its "
                  "largest size before wrapping, or keep it outside of the module",
                  name, c10::toString(now.scalar_type()), now.sizes().vec(), c10::toString(before.scalar_type()),
                  before.sizes().vec()));
}

}  // namespace

ShardBuffers::ShardBuffers(const NamedTensors& buffers) {
  for (const auto& [name, tensor] : buffers) {
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) continue;
    buffers_.push_back({.name = name, .tensor = tensor, .before = at::empty_like(tensor)});
  }
  const auto others =
      std::ranges::stable_partition(buffers_, [](const Buffer& buffer) { return is_averaged(buffer.tensor); });
  averaged_ = buffers_.size() - others.size();
}

void ShardBuffers::begin_step() {
  for (Buffer& buffer : buffers_) {
    buffer.before.copy_(buffer.tensor);
    buffer.is_changed = false;
  }
}

void ShardBuffers::collect(ShardResult& result) {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    Buffer& buffer = buffers_[i];
    const at::Tensor now = dense(buffer.tensor);
    require_same_shape(buffer.name, now, buffer.before);
    const at::Tensor on_host = now.cpu(), before = buffer.before.cpu();
    buffer.is_changed = bytes_of(on_host) != bytes_of(before);
    if (i >= averaged_) {
      result.hashes.push_back(buffer.is_changed ? hash_of(bytes_of(on_host)) : 0);
    } else {
      result.tensors.push_back(buffer.is_changed ? at::empty_like(now).copy_(now) : at::Tensor());
    }
  }
}

void ShardBuffers::restore_changed() {
  const at::NoGradGuard no_grad;
  for (const Buffer& buffer : buffers_) {
    if (!buffer.is_changed) continue;
    if (buffer.tensor.sizes() == buffer.before.sizes()) {
      buffer.tensor.copy_(buffer.before);
    } else {  // the step that made it grow or shrink has failed
      buffer.tensor.set_data(buffer.before.clone());
    }
  }
}

void ShardBuffers::restore_all() {
  for (Buffer& buffer : buffers_) buffer.is_changed = true;
  restore_changed();
}

void ShardBuffers::take_means(std::span<const at::Tensor> means) {
  for (std::size_t i = 0; i < averaged_; ++i) {
    if (means[i].defined()) buffers_[i].tensor.copy_(means[i]);
  }
}

std::vector<at::Tensor> ShardBuffers::values_before() const {
  std::vector<at::Tensor> values;
  for (const Buffer& buffer : buffers_) values.push_back(buffer.before.clone());
  return values;
}

void ShardBuffers::load(const std::vector<at::Tensor>& values) const {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    require_same_shape(buffers_[i].name, dense(buffers_[i].tensor), values[i]);
    copy_values(buffers_[i].tensor, values[i]);
  }
}

void ShardBuffers::save(std::vector<at::Tensor>& values) const {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const at::Tensor now = dense(buffers_[i].tensor);
    require_same_shape(buffers_[i].name, now, values[i]);
    copy_values(values[i], now);
  }
}

Error ShardBuffers::conflict_error(std::size_t hash) const {
  const Buffer& buffer = buffers_[averaged_ + hash];
  return lockstep_mode_error(
      fmt::format("shards computed different values for buffer {}, whose dtype {} cannot hold their mean", buffer.name,
                  c10::toString(buffer.tensor.scalar_type())));
}

}  // namespace lockstep::internal
