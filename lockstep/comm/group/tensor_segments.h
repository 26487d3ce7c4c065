// The only place where a Tensor becomes bytes: checks what a collective can move and lists its memory as segments.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/dtype.h"
#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/group/device_streams.h"
#include "lockstep/comm/group/overlap.h"

namespace lockstep::internal {

// Nothing for a type that collectives cannot reduce.
std::optional<DType> known_dtype(at::ScalarType type);
// Error{invalid_argument} naming the operation for a type that collectives cannot reduce.
DType dtype_of(const at::Tensor& tensor, std::string_view operation);

// Whether a tensor's memory is what the tensor says: it is dense, on the host, in order, and without lazy bits.
inline bool is_plain(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kKeys = c10::DispatchKeySet(c10::DispatchKey::CPU) |
                                        c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                        c10::DispatchKeySet(c10::DispatchKey::AutocastCPU);
  return tensor.defined() && (tensor.key_set() | kKeys) == kKeys && tensor.is_contiguous();
}
// Reductions need operands that are aligned to their type.
inline bool is_aligned(const at::Tensor& tensor, const void* data) {
  return (reinterpret_cast<std::uintptr_t>(data) & (tensor.element_size() - 1)) == 0;
}
// Error{invalid_argument} naming the tensor, unless it is a dense one with memory.
void require_dense(const at::Tensor& tensor, std::string_view operation, const std::string& name);

// The memory as a tensor, which does not own it.
at::Tensor bytes_at(std::byte* data, std::size_t bytes, at::Device device);

// Whose memory an engine can read and write: the host's, or that of a device as well.
enum class Memory { host, device };

// The memory of some tensors of one dtype, joined. A tensor whose memory is not what it says, or lies where the engine
// cannot reach it, is copied; `copy_back()` copies the results back. So is what lies in several tensors of a list that
// is worked on in place, so that each gets its result. Copies of a device's tensors lie in pinned memory, where the
// device knows such. Holds the memory until clear(). Work of devices is queued on their current streams, and nothing
// waits for it but await().
class TensorSegments {
 public:
  // What is only moved may have any type; it counts in bytes if dtype_of() has none for it.
  enum class Use { reduce, move };
  // What the collective does with the memory.
  enum class Flow {
    read,
    write,    // all of it; each byte in one tensor only
    update,   // reads it, then writes
    replace,  // write, but tensors may overlap
    spoil,    // reads it, then leaves anything there, which does not go back into copies
  };

  // Of no tensors.
  TensorSegments() = default;
  TensorSegments(at::TensorList tensors, std::string_view operation, Use use, Flow flow = Flow::update,
                 Memory memory = Memory::host);

  // Of other tensors, in the memory that it has. Error{invalid_argument} naming the tensor, as of the constructor: see
  // require_dense(); of another dtype than the first; written, and with elements that share memory; or written only,
  // and over another one.
  void assign(at::TensorList tensors, std::string_view operation, Use use, Flow flow, Memory memory);
  // Of plain memory, which somebody else looks after.
  void assign(std::span<const Segment> segments);
  // Copies what lies over the outputs of a collective, unless that is where it belongs: `part` is the side that may be
  // a part of the other, from `offset` bytes on. REQUIRES: outputs were assigned as Flow::write.
  enum class Part { none, inputs, outputs };
  void keep_apart_from(const TensorSegments& outputs, Part part, std::size_t offset);
  // Lets go of the tensors.
  void clear();

  DType dtype() const { return dtype_; }
  std::uint64_t count() const { return count_; }
  std::span<const Segment> segments() const { return segments_; }
  // Blocks until devices have copied what segments() are to hold, and have done what was queued before. To be called
  // before anybody reads segments(), or writes to those that a device has.
  void await() const { queued_.wait_on_host(); }
  // Queues copies on the current streams of devices, after what was queued when the segments were assigned. Returns
  // where the streams are then. Error{internal} if torch cannot. REQUIRES: the collective that wrote to segments() is
  // finished.
  StreamMarks copy_back() const;
  // The devices' current streams use the memory; see note_use().
  void note_uses() const;
  const StreamMarks& queued() const { return queued_; }  // when they were assigned

 private:
  void add(const at::Tensor& tensor, std::size_t index, Use use, Memory memory);
  void point_at(std::size_t index, const at::Tensor& flat);
  void copy_what_overlaps(at::TensorList tensors);

  std::string operation_;
  Flow flow_ = Flow::read;
  DType dtype_ = DType::f32;
  std::uint64_t count_ = 0;
  std::vector<Segment> segments_;
  std::vector<c10::Storage> keep_;  // alive while a collective runs, whatever becomes of the tensors
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // (caller's, copy)
  std::vector<MemorySpan> spans_;                          // of the segments, by address, for lists
  StreamMarks queued_;
};

}  // namespace lockstep::internal
