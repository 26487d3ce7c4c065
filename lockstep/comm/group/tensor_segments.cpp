#include "lockstep/comm/group/tensor_segments.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/device_streams.h"
#include "lockstep/comm/group/torch_errors.h"

namespace lockstep::internal {
namespace {

[[noreturn]] void refuse(std::string_view operation, const std::string& why) {
  throw Error(ErrorKind::invalid_argument, std::string(operation) + ": " + why, {.operation = std::string(operation)});
}

template <class T>
std::string text_of(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

}  // namespace

std::optional<DType> known_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::f32;
    case at::kDouble: return DType::f64;
    case at::kHalf: return DType::f16;
    case at::kBFloat16: return DType::bf16;
    case at::kInt: return DType::i32;
    case at::kLong: return DType::i64;
    case at::kByte: return DType::u8;
    case at::kChar: return DType::i8;
    case at::kShort: return DType::i16;
    case at::kUInt16: return DType::u16;
    case at::kUInt32: return DType::u32;
    case at::kUInt64: return DType::u64;
    case at::kBool: return DType::boolean;
    case at::kComplexFloat: return DType::c64;
    case at::kComplexDouble: return DType::c128;
    default: return std::nullopt;
  }
}

DType dtype_of(const at::Tensor& tensor, std::string_view operation) {
  if (const auto dtype = known_dtype(tensor.scalar_type())) return *dtype;
  refuse(operation, "tensors of type " + text_of(tensor.scalar_type()) +
                        " can be moved but not reduced (float32, float64, float16, bfloat16, bool, complex64, "
                        "complex128, and integers of 8 to 64 bits can)");
}

namespace {

using Flow = TensorSegments::Flow;

bool writes(Flow flow) { return flow == Flow::write || flow == Flow::update || flow == Flow::replace; }

std::string name_of(Flow flow, std::size_t index) {
  const char* side = flow == Flow::read ? "input tensor " : flow == Flow::write ? "output tensor " : "tensor ";
  return side + std::to_string(index);
}

// A device's tensor as it lies in memory: not every device's copies know of lazy bits.
at::Tensor without_bits(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.is_neg() ? at::_neg_view(tensor) : tensor;
  return plain.is_conj() ? plain.conj() : plain;
}

bool has_bits(const at::Tensor& tensor) { return tensor.is_neg() || tensor.is_conj(); }

// Does to a copy what the lazy bits of a tensor mean; twice, and it is undone.
void apply_bits(const at::Tensor& copy, const at::Tensor& of) {
  if (of.is_neg()) copy.neg_();
  if (of.is_conj()) copy.conj_physical_();
}

// A copy in order, where the engine reaches it; with its contents only if they matter.
at::Tensor copy_of(const at::Tensor& tensor, at::Device device, Flow flow) {
  const at::AutoDispatchBelowADInplaceOrView below;  // any tensor may be read, whoever computes with it
  const bool pinned = device.is_cpu() && !tensor.is_cpu() && can_pin_for(tensor.device());
  const at::Tensor copy =
      at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).device(device).pinned_memory(pinned));
  if (flow == Flow::write || flow == Flow::replace) return copy;
  if (tensor.is_cpu()) return copy.copy_(tensor);
  copy.copy_(without_bits(tensor), /*non_blocking=*/pinned && !has_bits(tensor));
  note_use(tensor);
  apply_bits(copy, tensor);
  return copy;
}

void* memory_of(const at::Tensor& tensor, Flow flow) {
  // Whoever writes gets memory that no copy-on-write twin shares; a reader need not.
  return flow == Flow::read ? const_cast<void*>(tensor.const_data_ptr()) : tensor.mutable_data_ptr();
}

}  // namespace

void require_dense(const at::Tensor& tensor, std::string_view operation, const std::string& name) {
  if (!tensor.defined()) refuse(operation, name + " is undefined");
  if (is_plain(tensor)) return;
  if (tensor.is_nested()) refuse(operation, name + " is nested; give its component tensors");
  if (tensor.layout() != at::kStrided) {
    const bool is_opaque = tensor.is_mkldnn();
    refuse(operation, name + " is " + (is_opaque ? "" : "sparse, ") + text_of(tensor.layout()) +
                          ", where a dense tensor is needed; convert it with to_dense()");
  }
  if (tensor.is_quantized()) refuse(operation, name + " is quantized; give its int_repr(), scale and zero point");
  if (tensor.is_meta()) refuse(operation, name + " is on the meta device, which has no memory");
  if (tensor.is_cpu() && !tensor.has_storage()) refuse(operation, name + " has no storage");
}

TensorSegments::TensorSegments(at::TensorList tensors, std::string_view operation, Use use, Flow flow, Memory memory) {
  assign(tensors, operation, use, flow, memory);
}

void TensorSegments::clear() {
  dtype_ = DType::f32;
  count_ = 0;
  segments_.clear();
  keep_.clear();
  copies_.clear();
  spans_.clear();
  queued_.clear();
}

void TensorSegments::assign(std::span<const Segment> segments) {
  clear();
  segments_.assign(segments.begin(), segments.end());
}

void TensorSegments::point_at(std::size_t index, const at::Tensor& flat) {
  segments_[index] = {static_cast<std::byte*>(memory_of(flat, flow_)), static_cast<std::size_t>(flat.nbytes())};
  keep_[index] = flat.storage();
}

void TensorSegments::add(const at::Tensor& tensor, std::size_t index, Use use, Memory memory) {
  const bool on_device = !tensor.is_cpu();
  const bool in_reach = !on_device || memory == Memory::device;
  const bool has_own_bits = tensor.is_conj() || tensor.is_neg() || tensor._is_zerotensor();
  if (writes(flow_) && tensor._is_zerotensor()) {
    refuse(operation_, name_of(flow_, index) + " is a ZeroTensor without storage, which cannot be written; clone() it");
  }
  // Where a call only spoils it, it is refused too: all ranks of a call refuse alike.
  if ((writes(flow_) || flow_ == Flow::spoil) && overlaps_itself(tensor)) {
    refuse(operation_, name_of(flow_, index) + " has elements that share memory (sizes " + text_of(tensor.sizes()) +
                           ", strides " + text_of(tensor.strides()) + "), so it cannot be written; clone() it");
  }
  const bool aligned = on_device || !tensor.has_storage() || is_aligned(tensor, tensor.const_data_ptr());
  if (in_reach && !has_own_bits && tensor.is_contiguous() && (use == Use::move || aligned)) {
    point_at(index, tensor);
  } else {
    if (!aligned && tensor.is_complex()) {  // which torch itself cannot copy
      refuse(operation_, name_of(flow_, index) + " is not aligned to " + std::to_string(tensor.element_size()) +
                             " bytes (" + text_of(tensor.scalar_type()) + ")");
    }
    const at::Tensor copy = copy_of(tensor, in_reach ? tensor.device() : at::Device(at::kCPU), flow_);
    if (writes(flow_)) copies_.emplace_back(tensor.detach(), copy);
    point_at(index, copy);
  }
  if (segments_[index].bytes != 0 && segments_[index].data == nullptr) {
    refuse(operation_, name_of(flow_, index) + " has no memory");
  }
}

void TensorSegments::assign(at::TensorList tensors, std::string_view operation, Use use, Flow flow, Memory memory) {
  clear();
  operation_ = operation;
  flow_ = flow;
  segments_.resize(tensors.size());
  keep_.resize(tensors.size());
  as_errors(operation, ErrorKind::invalid_argument, [&] {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& tensor = tensors[i];
      require_dense(tensor, operation, name_of(flow, i));
      const DType dtype =
          use == Use::reduce ? dtype_of(tensor, operation) : known_dtype(tensor.scalar_type()).value_or(DType::opaque);
      if (i == 0) dtype_ = dtype;
      if (tensor.scalar_type() != tensors.front().scalar_type()) {
        refuse(operation, name_of(flow, i) + " is " + text_of(tensor.scalar_type()) + " where tensor 0 is " +
                              text_of(tensors.front().scalar_type()));
      }
      add(tensor, i, use, memory);
      count_ += static_cast<std::uint64_t>(segments_[i].bytes) / element_size(dtype);
    }
    if (tensors.size() > 1 && flow != Flow::read && flow != Flow::write) copy_what_overlaps(tensors);
    const auto pair = flow == Flow::write && tensors.size() > 1 ? find_overlap(tensors, spans_) : std::nullopt;
    if (pair) {
      refuse(operation, "output tensors " + std::to_string(pair->first) + " and " + std::to_string(pair->second) +
                            " overlap in memory, so they cannot hold both results");
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (i == 0 || tensors[i].device() != tensors[i - 1].device()) queued_.add(tensors[i].device());
    }
  });
}

// Of what is worked on in place. A tensor that is a copy already lies over none.
void TensorSegments::copy_what_overlaps(at::TensorList tensors) {
  list_spans(segments_, spans_);
  std::size_t farthest = 0;
  const auto move_away = [&](std::size_t index) {
    const at::Tensor& tensor = tensors[index];
    const bool is_copied = keep_[index].unsafeGetStorageImpl() != tensor.storage().unsafeGetStorageImpl();
    if (is_copied) return;
    const at::Tensor copy = copy_of(tensor, tensor.device(), flow_);
    if (writes(flow_)) copies_.emplace_back(tensor.detach(), copy);
    point_at(index, copy);
  };
  for (std::size_t i = 1; i < spans_.size(); ++i) {
    if (spans_[i].begin < spans_[farthest].end) {
      move_away(spans_[i].index);
      move_away(spans_[farthest].index);
    }
    if (spans_[i].end > spans_[farthest].end) farthest = i;
  }
}

void TensorSegments::keep_apart_from(const TensorSegments& outputs, Part part, std::size_t offset) {
  if (segments_.empty() || outputs.segments_.empty()) return;
  list_spans(outputs.segments_, spans_);
  std::size_t shared = 0;
  for (const Segment& segment : segments_) shared += bytes_within(segment, spans_);
  if (shared == 0) return;
  const auto& inner = part == Part::inputs ? segments_ : outputs.segments_;
  const auto& outer = part == Part::inputs ? outputs.segments_ : segments_;
  std::size_t inner_bytes = 0;
  for (const Segment& segment : inner) inner_bytes += segment.bytes;
  if (part != Part::none && shared == inner_bytes && is_part_of(inner, outer, offset)) return;
  as_errors(operation_, ErrorKind::invalid_argument, [&] {
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      if (bytes_within(segments_[i], spans_) == 0) continue;
      const auto bytes = static_cast<std::int64_t>(segments_[i].bytes);
      const at::Tensor copy = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(keep_[i].device()));
      copy.copy_(bytes_at(segments_[i].data, segments_[i].bytes, copy.device()));
      note_use(keep_[i]);
      point_at(i, copy);
      queued_.add(copy.device());
    }
  });
}

at::Tensor bytes_at(std::byte* data, std::size_t bytes, at::Device device) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kByte).device(device);
  return at::for_blob(data, {static_cast<std::int64_t>(bytes)}).options(options).target_device(device).make_tensor();
}

void TensorSegments::note_uses() const {
  for (const c10::Storage& each : keep_) note_use(each);
}

StreamMarks TensorSegments::copy_back() const {
  StreamMarks done;
  if (queued_.devices().empty() && copies_.empty()) return done;
  as_errors(operation_, ErrorKind::internal, [&] {
    // As where nothing was copied: memory is written, whoever computes with it.
    const at::AutoDispatchBelowADInplaceOrView below;
    queued_.wait_on_streams();
    for (const auto& [theirs, copy] : copies_) {
      if (!theirs.is_cpu()) apply_bits(copy, theirs);
      (theirs.is_cpu() ? theirs : without_bits(theirs)).copy_(copy, !theirs.is_cpu() && copy.is_pinned());
      note_use(theirs);
      note_use(copy);
      if (!theirs.is_inference()) theirs.unsafeGetTensorImpl()->bump_version();
    }
    for (const at::Device device : queued_.devices()) done.add(device);
  });
  return done;
}

}  // namespace lockstep::internal
