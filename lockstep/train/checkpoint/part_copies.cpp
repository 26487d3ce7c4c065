#include "lockstep/train/checkpoint/part_copies.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/group/device_streams.h"
#include "lockstep/train/checkpoint/normal_mode.h"

namespace lockstep::internal {
namespace {

[[noreturn]] void refuse_change(const std::string& name) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("checkpoint: '{}' was changed while it was copied in the background; call "
                          "AsyncSaver::wait_for_copy() before the optimizer's step",
                          name));
}

// Where the i-th element lies, in elements from the first one.
std::int64_t place_of(const at::Tensor& tensor, std::int64_t i) {
  std::int64_t place = 0;
  for (std::int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
    place += i % tensor.size(dim) * tensor.stride(dim);
    i /= tensor.size(dim);
  }
  return place;
}

// The bytes of some elements, the first and the last among them, whatever device and order the tensor has.
at::Tensor samples_of(const at::Tensor& tensor) {
  const std::int64_t elements = tensor.numel(), count = std::min(elements, PartCopies::kSamples);
  if (elements == 0) return {};
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < count; ++i) {
    const double share = count == 1 ? 0 : static_cast<double>(i) / static_cast<double>(count - 1);
    places.push_back(place_of(tensor, static_cast<std::int64_t>(share * static_cast<double>(elements - 1))));
  }
  const std::int64_t extent = *std::ranges::max_element(places) + 1;
  const at::Tensor memory = tensor.detach().as_strided({extent, 1}, {1, 1}).view(at::kByte);
  return memory.index_select(0, at::tensor(places, at::kLong).to(tensor.device())).to(at::kCPU);
}

// A tensor whose bytes are its elements, so that they can be compared with those of a copy.
bool can_wait(const SaveJob::Part& part) { return part.is_stepped && !part.tensor.is_conj() && !part.tensor.is_neg(); }

}  // namespace

void require_unchanged(const SaveJob::Part& part) {
  if (part.version != version_of(part.tensor)) refuse_change(part.name);
}

at::Tensor PartCopies::room_for(const SaveJob::Part& part) {
  at::Tensor& copy = copies_[part.name];
  if (!copy.defined() || copy.sizes() != part.tensor.sizes() || copy.scalar_type() != part.tensor.scalar_type()) {
    const at::TensorOptions options = at::TensorOptions().dtype(part.tensor.scalar_type()).device(at::kCPU);
    copy = at::empty(part.tensor.sizes(), options.pinned_memory(can_pin_for(part.tensor.device())));
  }
  return copy;
}

void PartCopies::take_samples(const SaveJob& job) {
  samples_.clear();
  for (const SaveJob::Part& part : job.parts) {
    if (!part.is_copied && can_wait(part)) samples_[part.name] = samples_of(part.tensor);
  }
}

void PartCopies::require_sampled(const SaveJob::Part& part, const at::Tensor& now) const {
  const auto before = samples_.find(part.name);
  if (before == samples_.end() || !before->second.defined()) return;
  if (!at::equal(before->second, samples_of(now))) refuse_change(part.name);
}

void PartCopies::take(SaveJob& job, Which which) {
  const NormalMode normal_mode;
  const at::NoGradGuard no_grad;
  std::set<std::string_view> names;
  for (const SaveJob::Part& part : job.parts) names.insert(part.name);
  std::erase_if(copies_, [&](const auto& item) { return !names.contains(item.first); });
  if (which == Which::all_but_stepped) take_samples(job);
  std::vector<Original> originals;
  for (SaveJob::Part& part : job.parts) {
    if (part.is_copied || (which == Which::all_but_stepped && can_wait(part))) continue;
    at::Tensor copy = room_for(part);
    copy.copy_(part.tensor);
    require_unchanged(part);
    require_sampled(part, copy);
    originals.push_back({.part = &part, .tensor = std::exchange(part.tensor, std::move(copy))});
    part.is_copied = true;
  }
  if (which == Which::all_but_stepped) return;
  for (const auto& [part, tensor] : originals) require_sampled(*part, tensor);
  samples_.clear();
}

}  // namespace lockstep::internal
