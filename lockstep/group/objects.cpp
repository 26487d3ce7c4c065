#include "lockstep/group/objects.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <new>

#include "lockstep/base/error.h"
#include "lockstep/group/tensor_segments.h"
#include "lockstep/group/torch_errors.h"

namespace lockstep {
namespace {

using Lengths = std::vector<std::int64_t>;

constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;  // of an object; more is taken for damage
constexpr std::int64_t kWrongList = -1;                     // instead of a length: the root gave no list for all ranks

at::Tensor tensor_of(Lengths& lengths) {
  return at::from_blob(lengths.data(), {static_cast<std::int64_t>(lengths.size())}, at::kLong);
}

// The memory of `bytes`, which is only read unless a collective writes to it.
at::Tensor tensor_of(const std::string& bytes) {
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

// `of_rank`: who said how long its object is, or the object that it has for this rank.
void check_length(std::int64_t length, std::size_t of_rank) {
  if (length >= 0 && length <= kMostBytes) return;
  throw Error(ErrorKind::corrupt_data,
              "rank " + std::to_string(of_rank) + " says that an object has " + std::to_string(length) +
                  " bytes; do all ranks make the same calls?",
              {.peer = static_cast<int>(of_rank)});
}

void check_root(const ProcessGroup& group, int root, const std::string& operation) {
  if (root >= 0 && root < group.size()) return;
  throw Error(ErrorKind::invalid_argument,
              operation + ": root " + std::to_string(root) + " is not a rank of this group of " +
                  std::to_string(group.size()) + " (this is rank " + std::to_string(group.rank()) + ")",
              {.rank = group.rank(), .operation = operation});
}

// Grows or shrinks to what another rank says.
void resize(std::string& bytes, std::int64_t length, std::size_t of_rank) {
  try {
    bytes.resize(static_cast<std::size_t>(length));
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::corrupt_data,
                "rank " + std::to_string(of_rank) + " says that an object has " + std::to_string(length) +
                    " bytes, for which there is no memory",
                {.peer = static_cast<int>(of_rank)});
  }
}

Lengths all_lengths(const ProcessGroup& group, const std::string& mine) {
  Lengths own{static_cast<std::int64_t>(mine.size())}, all(static_cast<std::size_t>(group.size()));
  group.all_gather_into(tensor_of(all), tensor_of(own), {.name = "lengths of objects"});
  for (std::size_t rank = 0; rank < all.size(); ++rank) check_length(all[rank], rank);
  return all;
}

// Sends sent[i] to rank i, and returns what came from each, `lengths` bytes, all of them between 0 and kMostBytes.
std::vector<std::string> exchange(const ProcessGroup& group, const std::vector<at::Tensor>& sent,
                                  const Lengths& lengths) {
  std::vector<std::string> received;
  std::vector<at::Tensor> outputs;
  received.reserve(lengths.size());
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    resize(received.emplace_back(), lengths[rank], rank);
    outputs.push_back(tensor_of(received.back()));
  }
  group.all_to_all(outputs, sent, {.name = "objects"});
  return received;
}

void put(std::string& out, std::int64_t value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); }

std::int64_t take(std::string_view& bytes) {
  if (bytes.size() < sizeof(std::int64_t)) refuse_object(bytes.size(), sizeof(std::int64_t));
  std::int64_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

}  // namespace

void refuse_object(std::size_t bytes, std::size_t expected_bytes) {
  throw Error(ErrorKind::corrupt_data, "an object came as " + std::to_string(bytes) + " bytes where " +
                                           std::to_string(expected_bytes) + " belong; do all ranks use the same type?");
}

std::vector<std::string> all_gather_bytes(const ProcessGroup& group, const std::string& mine) {
  const Lengths lengths = all_lengths(group, mine);
  return exchange(group, std::vector<at::Tensor>(lengths.size(), tensor_of(mine)), lengths);
}

std::vector<std::string> gather_bytes_to(const ProcessGroup& group, const std::string& mine, int root) {
  check_root(group, root, "gather_object");
  Lengths lengths = all_lengths(group, mine);
  std::vector<at::Tensor> sent(lengths.size(), at::empty({0}, at::kByte));
  sent[static_cast<std::size_t>(root)] = tensor_of(mine);
  if (group.rank() != root) lengths.assign(lengths.size(), 0);
  auto received = exchange(group, sent, lengths);
  if (group.rank() != root) received.clear();
  return received;
}

std::string broadcast_bytes(const ProcessGroup& group, const std::string& mine, int root) {
  check_root(group, root, "broadcast_object");
  Lengths length{static_cast<std::int64_t>(mine.size())};
  group.broadcast(tensor_of(length), root, {.name = "length of an object"});
  check_length(length.front(), static_cast<std::size_t>(root));
  std::string bytes = mine;
  resize(bytes, length.front(), static_cast<std::size_t>(root));
  group.broadcast(tensor_of(bytes), root, {.name = "object"});
  return bytes;
}

std::string scatter_bytes_from(const ProcessGroup& group, const std::vector<std::string>& all, int root) {
  check_root(group, root, "scatter_object");
  const auto n = static_cast<std::size_t>(group.size());
  const bool is_root = group.rank() == root;
  Lengths lengths(n, kWrongList);  // a wrong list is an error on all ranks
  for (std::size_t i = 0; is_root && all.size() == n && i < n; ++i) {
    lengths[i] = static_cast<std::int64_t>(all[i].size());
  }
  group.broadcast(tensor_of(lengths), root, {.name = "lengths of objects"});
  if (lengths.front() == kWrongList) {
    throw Error(ErrorKind::invalid_argument, "scatter_object: rank " + std::to_string(root) +
                                                 " has to give one object for each of " + std::to_string(n) + " ranks");
  }
  for (const std::int64_t length : lengths) check_length(length, static_cast<std::size_t>(root));
  std::vector<at::Tensor> sent(n, at::empty({0}, at::kByte));
  for (std::size_t i = 0; is_root && i < n; ++i) sent[i] = tensor_of(all[i]);
  Lengths expected(n, 0);
  expected[static_cast<std::size_t>(root)] = lengths[static_cast<std::size_t>(group.rank())];
  return exchange(group, sent, expected)[static_cast<std::size_t>(root)];
}

// scalar type, number of dimensions, dimensions, elements
std::string ObjectCodec<at::Tensor>::encode(const at::Tensor& tensor) {
  constexpr std::string_view kOperation = "a tensor as an object";
  require_dense(tensor, kOperation, "the tensor");
  if (!tensor.is_cpu()) {
    throw Error(ErrorKind::invalid_argument,
                std::string(kOperation) + ": the tensor is on " + tensor.device().str() + "; give a copy on the CPU");
  }
  const at::Tensor dense = as_errors(kOperation, ErrorKind::invalid_argument, [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    if (is_plain(tensor)) return tensor;
    return at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type())).copy_(tensor);
  });
  std::string bytes;
  put(bytes, static_cast<std::int64_t>(dense.scalar_type()));
  put(bytes, dense.dim());
  for (const auto size : dense.sizes()) put(bytes, size);
  return bytes.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
}

at::Tensor ObjectCodec<at::Tensor>::decode(std::string_view bytes) {
  const std::int64_t type = take(bytes), dimensions = take(bytes);
  if (type < 0 || type >= static_cast<std::int64_t>(at::ScalarType::Undefined) ||
      c10::isQIntType(static_cast<at::ScalarType>(type)) || dimensions < 0 || dimensions > 64) {
    throw Error(ErrorKind::corrupt_data, "an object that came is no tensor; do all ranks use the same type?");
  }
  std::vector<std::int64_t> sizes;
  std::int64_t expected = static_cast<std::int64_t>(c10::elementSize(static_cast<at::ScalarType>(type)));
  std::int64_t strides = expected;
  for (std::int64_t i = 0; i < dimensions; ++i) {
    sizes.push_back(take(bytes));
    // Before anything is allocated: no dimension is larger than what came, unless there are no elements at all.
    if (sizes.back() < 0 || (!bytes.empty() && sizes.back() > static_cast<std::int64_t>(bytes.size())) ||
        __builtin_mul_overflow(strides, std::max<std::int64_t>(sizes.back(), 1), &strides)) {
      refuse_object(bytes.size(), static_cast<std::size_t>(sizes.back()));
    }
    expected *= sizes.back();
  }
  if (bytes.size() != static_cast<std::size_t>(expected)) {
    refuse_object(bytes.size(), static_cast<std::size_t>(expected));
  }
  at::Tensor tensor = as_errors("a tensor as an object", ErrorKind::corrupt_data, [&] {
    return at::empty(sizes, at::TensorOptions().dtype(static_cast<at::ScalarType>(type)));
  });
  if (expected != 0) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace lockstep
