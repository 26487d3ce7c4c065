#include "lockstep/comm/group/objects.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <new>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/machine.h"
#include "lockstep/comm/group/believed.h"
#include "lockstep/comm/group/process_group.h"
#include "lockstep/comm/group/tensor_segments.h"
#include "lockstep/comm/group/torch_errors.h"

namespace lockstep {

using namespace internal;

namespace {

using Lengths = std::vector<std::int64_t>;

constexpr std::int64_t kWrongList = -1;  // instead of a length: the root gave no list for all ranks

at::Tensor tensor_of(Lengths& lengths) {
  return at::from_blob(lengths.data(), {static_cast<std::int64_t>(lengths.size())}, at::kLong);
}

// The memory of `bytes`, which is only read unless a collective writes to it.
at::Tensor tensor_of(const std::string& bytes) {
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

// What a rank tells of its object.
std::int64_t told_length(const std::string& bytes, std::size_t most) {
  return bytes.size() <= most ? static_cast<std::int64_t>(bytes.size()) : kTooLong;
}

void check_root(const ProcessGroup& group, int root, const std::string& operation) {
  if (root >= 0 && root < group.size()) return;
  throw Error(ErrorKind::invalid_argument,
              operation + ": root " + std::to_string(root) + " is not a rank of this group of " +
                  std::to_string(group.size()) + " ranks (this is rank " + std::to_string(group.rank()) + ")",
              {.rank = group.rank(), .operation = operation});
}

// One of the collectives that make a call.
CallOptions part(const CallOptions& together, std::string_view name) {
  CallOptions options = together;
  options.name = name;
  return options;
}

Lengths all_lengths(const ProcessGroup& group, const std::string& mine, std::size_t most, const CallOptions& together) {
  Lengths own{told_length(mine, most)}, all(static_cast<std::size_t>(group.size()));
  group.all_gather_into(tensor_of(all), tensor_of(own), part(together, "lengths of objects"));
  believed(group, [&] {
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      checked_object_length(all[rank], static_cast<int>(rank), most);
    }
  });
  return all;
}

// Memory for objects of these lengths, which were checked one by one.
std::vector<std::string> memory_for(const ProcessGroup& group, const Lengths& lengths) {
  const std::size_t memory = machine_memory_bytes();
  std::vector<std::string> objects;
  objects.reserve(lengths.size());
  std::size_t all = 0;
  try {
    for (const std::int64_t length : lengths) {
      all += static_cast<std::size_t>(length);
      if (all > memory) throw std::bad_alloc();
      objects.emplace_back(static_cast<std::size_t>(length), '\0');
    }
  } catch (const std::bad_alloc&) {
    const std::string why = "rank " + std::to_string(group.rank()) + " cannot allocate the " + std::to_string(all) +
                            " bytes of the objects that it receives";
    group.abort(why);  // the others would wait
    throw Error(ErrorKind::invalid_argument, why, {.rank = group.rank(), .peer = group.rank()});
  }
  return objects;
}

// Sends sent[i] to rank i, and returns what came from each, as long as was told.
std::vector<std::string> exchange(const ProcessGroup& group, const std::vector<at::Tensor>& sent,
                                  const Lengths& lengths, const CallOptions& together) {
  std::vector<std::string> received = memory_for(group, lengths);
  std::vector<at::Tensor> outputs;
  for (const std::string& each : received) outputs.push_back(tensor_of(each));
  group.all_to_all(outputs, sent, part(together, "objects"));
  return received;
}

void put(std::string& out, std::int64_t value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); }

// A tensor's type, and above it that of its device, whose number is 0 for the CPU.
constexpr int kDeviceShift = 16;
constexpr std::int64_t kTypeMask = (std::int64_t{1} << kDeviceShift) - 1;

std::int64_t told_type(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.scalar_type()) | static_cast<std::int64_t>(tensor.device().type())
                                                               << kDeviceShift;
}

std::size_t element_of(std::int64_t told) {
  const std::int64_t type = told & kTypeMask;
  if (told < 0 || told >> kDeviceShift >= static_cast<std::int64_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES)) return 0;
  if (type < 0 || type >= static_cast<std::int64_t>(at::ScalarType::Undefined)) return 0;
  const auto known = static_cast<at::ScalarType>(type);
  return c10::isQIntType(known) ? 0 : c10::elementSize(known);
}

}  // namespace

void internal::refuse_object(std::size_t bytes, std::size_t expected_bytes) {
  throw Error(ErrorKind::corrupt_data, "an object from another rank has " + std::to_string(bytes) +
                                           " bytes, expected " + std::to_string(expected_bytes) +
                                           "; do all ranks send the same type?");
}

void internal::refuse_bool(int byte) {
  throw Error(ErrorKind::corrupt_data, "a bool object from another rank has the value " + std::to_string(byte) +
                                           ", expected 0 or 1; do all ranks send the same type?");
}

std::vector<std::string> internal::all_gather_bytes(const ProcessGroup& group, const std::string& mine,
                                                    const CallOptions& options) {
  const CallOptions together = group.with_deadline(options);
  const Lengths lengths = all_lengths(group, mine, kMostObjectBytes, together);
  return exchange(group, std::vector<at::Tensor>(lengths.size(), tensor_of(mine)), lengths, together);
}

std::vector<std::string> internal::gather_bytes_to(const ProcessGroup& group, const std::string& mine, int root,
                                                   std::size_t most, const CallOptions& options) {
  check_root(group, root, "gather_object");
  const CallOptions together = group.with_deadline(options);
  Lengths lengths = all_lengths(group, mine, most, together);
  std::vector<at::Tensor> sent(lengths.size(), at::empty({0}, at::kByte));
  sent[static_cast<std::size_t>(root)] = tensor_of(mine);
  if (group.rank() != root) lengths.assign(lengths.size(), 0);
  auto received = exchange(group, sent, lengths, together);
  if (group.rank() != root) received.clear();
  return received;
}

std::string internal::broadcast_bytes(const ProcessGroup& group, const std::string& mine, int root,
                                      const CallOptions& options) {
  check_root(group, root, "broadcast_object");
  const CallOptions together = group.with_deadline(options);
  Lengths length{told_length(mine, kMostObjectBytes)};
  group.broadcast(tensor_of(length), root, part(together, "length of an object"));
  believed(group, [&] { checked_object_length(length.front(), root, kMostObjectBytes); });
  std::string bytes = group.rank() == root ? mine : std::move(memory_for(group, length).front());
  group.broadcast(tensor_of(bytes), root, part(together, "object"));
  return bytes;
}

std::string internal::scatter_bytes_from(const ProcessGroup& group, const std::vector<std::string>& all, int root,
                                         const CallOptions& options) {
  check_root(group, root, "scatter_object");
  const auto n = static_cast<std::size_t>(group.size());
  const bool is_root = group.rank() == root;
  const CallOptions together = group.with_deadline(options);
  Lengths lengths(n, kWrongList);  // a wrong list is an error on all ranks
  for (std::size_t i = 0; is_root && all.size() == n && i < n; ++i) {
    lengths[i] = told_length(all[i], kMostObjectBytes);
  }
  group.broadcast(tensor_of(lengths), root, part(together, "lengths of objects"));
  if (lengths.front() == kWrongList) {
    throw Error(ErrorKind::invalid_argument, "scatter_object: rank " + std::to_string(root) +
                                                 " must give one object for each of " + std::to_string(n) + " ranks");
  }
  believed(group, [&] {
    for (const std::int64_t length : lengths) checked_object_length(length, root, kMostObjectBytes);
  });
  std::vector<at::Tensor> sent(n, at::empty({0}, at::kByte));
  for (std::size_t i = 0; is_root && i < n; ++i) sent[i] = tensor_of(all[i]);
  Lengths expected(n, 0);
  expected[static_cast<std::size_t>(root)] = lengths[static_cast<std::size_t>(group.rank())];
  return exchange(group, sent, expected, together)[static_cast<std::size_t>(root)];
}

// types of elements and device, number of dimensions, dimensions, elements
std::string ObjectCodec<at::Tensor>::encode(const at::Tensor& tensor) {
  constexpr std::string_view kOperation = "sending a tensor as an object";
  require_dense(tensor, kOperation, "the tensor");
  if (tensor.is_meta()) {
    throw Error(ErrorKind::invalid_argument,
                std::string(kOperation) + ": the tensor is on the meta device, which holds no values");
  }
  const at::Tensor dense = as_errors(kOperation, ErrorKind::invalid_argument, [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    if (is_plain(tensor)) return tensor;
    return at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type())).copy_(tensor);
  });
  std::string bytes;
  put(bytes, told_type(tensor));
  put(bytes, dense.dim());
  for (const auto size : dense.sizes()) put(bytes, size);
  return bytes.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
}

at::Tensor ObjectCodec<at::Tensor>::decode(std::string_view bytes) {
  const TensorHead head = take_tensor_head(bytes, element_of);
  at::Tensor tensor = as_errors("receiving a tensor as an object", ErrorKind::corrupt_data, [&] {
    return at::empty(head.sizes, at::TensorOptions().dtype(static_cast<at::ScalarType>(head.type & kTypeMask)));
  });
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  const auto device = static_cast<c10::DeviceType>(head.type >> kDeviceShift);
  const bool is_here = device != at::kCPU && device != at::kMeta && c10::impl::hasDeviceGuardImpl(device) &&
                       c10::impl::getDeviceGuardImpl(device)->deviceCount() > 0;
  // Without a number: the one that is current in this thread.
  return is_here ? as_errors("receiving a tensor as an object", ErrorKind::internal,
                             [&] { return tensor.to(c10::Device(device)); })
                 : tensor;
}

}  // namespace lockstep
