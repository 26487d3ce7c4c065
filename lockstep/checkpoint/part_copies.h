// Copies of what a SaveJob writes, in memory that is kept from one save to the next: pages that are new cost more than
// copying. Pinned for tensors of a GPU. Used by one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/checkpoint/save_plan.h"

namespace lockstep::internal {

class PartCopies {
 public:
  enum class Which { all_but_stepped, all };

  // Puts copies in the place of the program's tensors, where that has not been done yet.
  // Error{invalid_argument}: a tensor has changed since plan_save(), or changes meanwhile; the text names it.
  void take(SaveJob& job, Which which);

 private:
  at::Tensor room_for(const SaveJob::Part& part);

  std::map<std::string, at::Tensor> copies_;  // by the part's name
};

}  // namespace lockstep::internal
