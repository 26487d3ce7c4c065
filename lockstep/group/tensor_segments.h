// The only place where a Tensor becomes bytes: checks what a collective can move and lists its memory as segments.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/dtype.h"
#include "lockstep/collective/collective.h"

namespace lockstep {

// Nothing for a type that collectives do not reckon with.
std::optional<DType> known_dtype(at::ScalarType type);
// Error{invalid_argument} naming the operation for a type that collectives do not reckon with.
DType dtype_of(const at::Tensor& tensor, std::string_view operation);
at::ScalarType scalar_type_of(DType dtype);

// Whose memory an engine can read and write: the host's, or that of a device as well.
enum class Memory { host, device };

// The memory of some tensors of one dtype, joined. A tensor whose elements do not lie in order, or which lies where the
// engine cannot reach it, is copied; `copy_back()` brings results home. Copies of CUDA tensors lie in pinned memory.
// Blocks until what the caller's stream has queued for a device's tensors is done.
class TensorSegments {
 public:
  // What is only moved may have any type; it counts in bytes if dtype_of() has none for it.
  enum class Use { reduce, move };
  // What the collective does with the memory: the contents of what is only written need not be copied.
  enum class Flow { read, write, update };

  // Of no tensors.
  TensorSegments() = default;
  TensorSegments(at::TensorList tensors, std::string_view operation, Use use, Flow flow = Flow::update,
                 Memory memory = Memory::host);

  // Of other tensors, in the memory that it has. Error{invalid_argument}, as of the constructor: an undefined or sparse
  // tensor, one without memory (meta), or different dtypes.
  void assign(at::TensorList tensors, std::string_view operation, Use use, Flow flow, Memory memory);
  // Lets go of the tensors.
  void clear();

  DType dtype() const { return dtype_; }
  std::uint64_t count() const { return count_; }
  std::span<const Segment> segments() const { return segments_; }
  // REQUIRES: the collective that wrote to segments() is finished.
  void copy_back() const;

 private:
  DType dtype_ = DType::f32;
  std::uint64_t count_ = 0;
  std::vector<Segment> segments_;
  std::vector<at::Tensor> keep_;                           // alive while a collective runs
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // (caller's, copy)
};

}  // namespace lockstep
