#include "lockstep/checkpoint/part_copies.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <set>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {

at::Tensor PartCopies::room_for(const SaveJob::Part& part) {
  at::Tensor& copy = copies_[part.name];
  if (!copy.defined() || copy.sizes() != part.tensor.sizes() || copy.scalar_type() != part.tensor.scalar_type()) {
    copy = at::empty(
        part.tensor.sizes(),
        at::TensorOptions().dtype(part.tensor.scalar_type()).device(at::kCPU).pinned_memory(part.tensor.is_cuda()));
  }
  return copy;
}

void PartCopies::take(SaveJob& job, Which which) {
  const at::NoGradGuard no_grad;
  std::set<std::string_view> names;
  for (const SaveJob::Part& part : job.parts) names.insert(part.name);
  std::erase_if(copies_, [&](const auto& item) { return !names.contains(item.first); });
  for (SaveJob::Part& part : job.parts) {
    if (part.is_copied || (part.is_stepped && which != Which::all)) continue;
    at::Tensor copy = room_for(part);
    copy.copy_(part.tensor);
    if (part.version != version_of(part.tensor)) {
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("checkpoint: '{}' was changed while it was copied in the background; call "
                              "AsyncSaver::wait_for_copy() before the optimizer's step",
                              part.name));
    }
    part.tensor = std::move(copy);
    part.is_copied = true;
  }
}

}  // namespace lockstep::internal
