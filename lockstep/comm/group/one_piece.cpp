#include "lockstep/comm/group/one_piece.h"

#include <ATen/ops/empty.h>

#include <cstdint>

#include "lockstep/comm/group/tensor_segments.h"

namespace lockstep::internal {

OnePiece::OnePiece(std::span<const Segment> segments, at::Device device, bool is_read)
    : segments_(segments), device_(device) {
  bool is_one = true;
  for (const Segment& each : segments) {
    if (each.bytes == 0) continue;
    if (bytes_ == 0) data_ = each.data;
    is_one &= each.data == data_ + bytes_;
    bytes_ += each.bytes;
  }
  if (is_one) return;
  copy_ = at::empty({static_cast<std::int64_t>(bytes_)}, at::TensorOptions().dtype(at::kByte).device(device));
  data_ = static_cast<std::byte*>(copy_.mutable_data_ptr());
  if (is_read) for_each([](const at::Tensor& segment, const at::Tensor& part) { part.copy_(segment); });
}

template <class Copy>
void OnePiece::for_each(Copy&& copy) const {
  std::int64_t next = 0;
  for (const Segment& each : segments_) {
    const auto bytes = static_cast<std::int64_t>(each.bytes);
    if (bytes == 0) continue;
    copy(bytes_at(each.data, each.bytes, device_), copy_.narrow(0, next, bytes));
    next += bytes;
  }
}

void OnePiece::copy_back() const {
  if (copy_.defined()) for_each([](const at::Tensor& segment, const at::Tensor& part) { segment.copy_(part); });
}

void OnePiece::copy_from(const OnePiece& other) const {
  if (bytes_ == 0 || data_ == other.data_) return;
  bytes_at(data_, bytes_, device_).copy_(bytes_at(other.data_, bytes_, device_));
}

}  // namespace lockstep::internal
