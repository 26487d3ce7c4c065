// The values of tensors of any types and devices as bytes, for collectives that move them as they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/group/process_group.h"

namespace lockstep::internal {

class ValueBytes {
 public:
  explicit ValueBytes(std::vector<at::Tensor> tensors);
  // Finds what the tensors hold now; bytes() views it, or a copy of one whose memory is not its values.
  void read();
  const std::vector<at::Tensor>& bytes() const { return bytes_; }
  // Writes the values of the copies back to the tensors.
  void write_back() const;
  // Copies one rank's values into the same tensors of all ranks. One collective, whatever their number; blocks; fails
  // as ProcessGroup::broadcast.
  void broadcast(int root, const ProcessGroup& group, const CallOptions& options);

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> bytes_;
};

}  // namespace lockstep::internal
