// Memory of a device as one piece, for libraries that take no lists. Segments -> OnePiece -> Communicator.
// Work is queued on the device's current stream. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>

#include "lockstep/comm/collective/collective.h"

namespace lockstep::internal {

class OnePiece {
 public:
  // The segments themselves where they follow each other in memory, else a copy of their size, with their contents if
  // `is_read`. They stay until copy_back() has been called.
  OnePiece(std::span<const Segment> segments, at::Device device, bool is_read);

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // Writes what a copy holds to the segments.
  void copy_back() const;
  // Of another piece of the same size.
  void copy_from(const OnePiece& other) const;

 private:
  template <class Copy>
  void for_each(Copy&& copy) const;

  const std::span<const Segment> segments_;
  const at::Device device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  at::Tensor copy_;
};

}  // namespace lockstep::internal
