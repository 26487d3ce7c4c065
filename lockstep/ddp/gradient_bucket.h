// A GradientBucket is some gradients that are reduced as one collective. hooks -> bucket -> process group.
// Large gradients that were born in shared memory are reduced where they lie; the others are copied into the bucket's
// own buffer and back. Belongs to the thread that runs backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/group/process_group.h"

namespace lockstep {

class GradientBucket {
 public:
  // `parameters` are of one dtype; their gradients are joined in this order, on all ranks alike.
  GradientBucket(std::string name, std::vector<at::Tensor> parameters);

  // Begins a backward: all gradients are awaited.
  void reset() { ready_ = 0; }
  // One more gradient is there. True when that was the last.
  bool add_ready() { return ++ready_ == parameters_.size(); }
  bool is_ready() const { return ready_ == parameters_.size(); }

  // Starts averaging over all ranks. REQUIRES: is_ready().
  void launch(const ProcessGroup& group);
  // Blocks until the averages are in the parameters' gradients.
  void finish(const ProcessGroup& group);

  const std::string& name() const { return name_; }
  std::size_t copied_bytes() const {
    return copied_bytes_;
  }  // in the last launch: gradients that did not lie in the arena

 private:
  struct Copy {
    std::size_t parameter;  // its index
    std::size_t offset;     // in buffer_
  };

  void collect(const ProcessGroup& group);
  void copy_in(std::size_t parameter, std::size_t offset);
  void launch_in_arena(const ProcessGroup& group);

  const std::string name_;
  const std::vector<at::Tensor> parameters_;
  std::size_t ready_ = 0;

  // Of the last launch.
  std::vector<Copy> copies_;
  std::vector<Segment> segments_;
  std::vector<at::Tensor> pieces_;  // the same as segments_, where a transport wants tensors
  at::Tensor buffer_;               // uint8, grows to what copies need
  std::size_t copied_bytes_ = 0;
  std::uint64_t ticket_ = 0;
  Work work_;
};

}  // namespace lockstep
