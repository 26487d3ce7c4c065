// Copies of what a SaveJob writes, in memory that is kept from one save to the next: pages that are new cost more than
// copying. Pinned for tensors of a GPU. Used by one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/train/checkpoint/save_plan.h"

namespace lockstep::internal {

// Error{invalid_argument} names a part that has changed since plan_save(), by PyTorch's count.
void require_unchanged(const SaveJob::Part& part);

class PartCopies {
 public:
  static constexpr std::int64_t kSamples = 32;  // of a tensor

  enum class Which { all_but_stepped, all };

  // Puts copies in the place of the program's tensors, where that has not been done yet. Of those that it leaves for
  // later it takes samples: some elements, spread over the tensor. Error{invalid_argument} names a tensor that has
  // changed since plan_save() by PyTorch's count, or whose samples differ: those in the copy, or those that the program
  // has when all is copied.
  void take(SaveJob& job, Which which);

 private:
  // A tensor of the program before it is copied.
  struct Original {
    const SaveJob::Part* part;
    at::Tensor tensor;
  };

  at::Tensor room_for(const SaveJob::Part& part);
  void take_samples(const SaveJob& job);
  void require_sampled(const SaveJob::Part& part, const at::Tensor& now) const;

  std::map<std::string, at::Tensor> copies_;   // by the part's name
  std::map<std::string, at::Tensor> samples_;  // the same, of those that are to be copied later
};

}  // namespace lockstep::internal
