#include "lockstep/train/ddp/comm_hooks/comm_hook.h"

#include <c10/core/ScalarType.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/observe/backward_name.h"

namespace lockstep {

using namespace internal;

std::string internal::name_of_backward(std::string what, std::string_view part, std::uint64_t wrapper) {
  if (!part.empty()) what.append(", ").append(part);
  if (wrapper != 1) what.append(", wrapper ").append(std::to_string(wrapper));
  if (!part.empty() || wrapper != 1) what += ",";
  return what.append(kOfBackward);
}

std::string bucket_call_name(std::size_t index, const std::vector<std::string>& names, std::string_view part,
                             std::uint64_t wrapper) {
  const std::size_t room = wrapper == 1 ? 56 : 44;  // flight recordings keep 111 letters
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i != 0 && list.size() + names[i].size() > room) {
      list += ", and " + std::to_string(names.size() - i) + " more";
      break;
    }
    // The end of a long name is more specific than its beginning.
    const bool fits = names[i].size() <= room;
    list += (i == 0 ? "" : ", ") + (fits ? names[i] : "..." + names[i].substr(names[i].size() - room));
  }
  return name_of_backward(std::string(kGradientBucket) + std::to_string(index) + " (" + list + ")", part, wrapper);
}

GradBucket::GradBucket(std::size_t index, bool is_last, at::Tensor buffer, std::vector<at::Tensor> parameters,
                       std::vector<std::string> names, std::uint64_t backward, std::uint64_t wrapper, bool is_weighted)
    : index_(index),
      is_last_(is_last),
      buffer_(std::move(buffer)),
      parameters_(std::move(parameters)),
      names_(std::move(names)),
      backward_(backward),
      wrapper_(wrapper),
      is_weighted_(is_weighted) {}

void GradBucket::set_buffer(const at::Tensor& buffer) {
  if (buffer.numel() != buffer_.numel()) {
    throw Error(ErrorKind::invalid_argument, "the communication hook's result for bucket " + std::to_string(index_) +
                                                 " has " + std::to_string(buffer.numel()) +
                                                 " elements, but the bucket has " + std::to_string(buffer_.numel()));
  }
  buffer_ = buffer.reshape({-1});
}

std::vector<at::Tensor> GradBucket::gradients() const {
  std::vector<at::Tensor> views;
  views.reserve(parameters_.size());
  std::int64_t offset = 0;
  for (const at::Tensor& parameter : parameters_) {
    views.push_back(buffer_.narrow(0, offset, parameter.numel()).view(parameter.sizes()));
    offset += parameter.numel();
  }
  return views;
}

void require_unweighted(const GradBucket& bucket, std::string_view hook) {
  if (!bucket.is_weighted()) return;
  throw Error(ErrorKind::invalid_argument,
              std::string(hook) +
                  " cannot be used with gradients that are divided by the weights of all ranks later; use "
                  "Weighting::ranks, and join() with divide_by_initial_world_size");
}

void require_real(const GradBucket& bucket, std::string_view hook) {
  const c10::ScalarType type = bucket.buffer().scalar_type();
  if (type == c10::kFloat || type == c10::kDouble || type == c10::kHalf || type == c10::kBFloat16) return;
  throw Error(ErrorKind::invalid_argument,
              std::string(hook) + " takes gradients of type Float, Double, Half or BFloat16, and those of bucket " +
                  std::to_string(bucket.index()) + " are of type " + c10::toString(type) +
                  "; use all_reduce_hook for this model");
}

}  // namespace lockstep
