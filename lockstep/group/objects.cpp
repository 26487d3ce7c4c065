#include "lockstep/group/objects.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Lengths = std::vector<std::int64_t>;

at::Tensor tensor_of(Lengths& lengths) {
  return at::from_blob(lengths.data(), {static_cast<std::int64_t>(lengths.size())}, at::kLong);
}

// The memory of `bytes`, which is only read unless a collective writes to it.
at::Tensor tensor_of(const std::string& bytes) {
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

Lengths all_lengths(const ProcessGroup& group, const std::string& mine) {
  Lengths own{static_cast<std::int64_t>(mine.size())}, all(static_cast<std::size_t>(group.size()));
  group.all_gather_into(tensor_of(all), tensor_of(own), {.name = "lengths of objects"});
  return all;
}

// Sends sent[i] to rank i, and returns what came from each, `lengths` bytes.
std::vector<std::string> exchange(const ProcessGroup& group, const std::vector<at::Tensor>& sent,
                                  const Lengths& lengths) {
  std::vector<std::string> received;
  std::vector<at::Tensor> outputs;
  received.reserve(lengths.size());
  for (const std::int64_t length : lengths) {
    received.emplace_back(static_cast<std::size_t>(length), '\0');
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
  Lengths lengths = all_lengths(group, mine);
  std::vector<at::Tensor> sent(lengths.size(), at::empty({0}, at::kByte));
  sent.at(static_cast<std::size_t>(root)) = tensor_of(mine);
  if (group.rank() != root) lengths.assign(lengths.size(), 0);
  auto received = exchange(group, sent, lengths);
  if (group.rank() != root) received.clear();
  return received;
}

std::string broadcast_bytes(const ProcessGroup& group, const std::string& mine, int root) {
  Lengths length{static_cast<std::int64_t>(mine.size())};
  group.broadcast(tensor_of(length), root, {.name = "length of an object"});
  std::string bytes = mine;
  bytes.resize(static_cast<std::size_t>(length.front()));
  group.broadcast(tensor_of(bytes), root, {.name = "object"});
  return bytes;
}

std::string scatter_bytes_from(const ProcessGroup& group, const std::vector<std::string>& all, int root) {
  const auto n = static_cast<std::size_t>(group.size());
  const bool is_root = group.rank() == root;
  Lengths lengths(n, -1);  // a wrong list is an error on all ranks
  for (std::size_t i = 0; is_root && all.size() == n && i < n; ++i) {
    lengths[i] = static_cast<std::int64_t>(all[i].size());
  }
  group.broadcast(tensor_of(lengths), root, {.name = "lengths of objects"});
  if (lengths.front() < 0) {
    throw Error(ErrorKind::invalid_argument, "scatter_object: rank " + std::to_string(root) +
                                                 " has to give one object for each of " + std::to_string(n) + " ranks");
  }
  std::vector<at::Tensor> sent(n, at::empty({0}, at::kByte));
  for (std::size_t i = 0; is_root && i < n; ++i) sent[i] = tensor_of(all[i]);
  Lengths expected(n, 0);
  expected[static_cast<std::size_t>(root)] = lengths[static_cast<std::size_t>(group.rank())];
  return exchange(group, sent, expected)[static_cast<std::size_t>(root)];
}

// scalar type, number of dimensions, dimensions, elements
std::string ObjectCodec<at::Tensor>::encode(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.device().is_cpu()) {
    throw Error(ErrorKind::invalid_argument, "an object that is a tensor has to be dense, and on the CPU");
  }
  const at::Tensor dense = tensor.detach().contiguous();
  std::string bytes;
  put(bytes, static_cast<std::int64_t>(dense.scalar_type()));
  put(bytes, dense.dim());
  for (const auto size : dense.sizes()) put(bytes, size);
  return bytes.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
}

at::Tensor ObjectCodec<at::Tensor>::decode(std::string_view bytes) {
  const std::int64_t type = take(bytes), dimensions = take(bytes);
  if (type < 0 || type >= static_cast<std::int64_t>(at::ScalarType::Undefined) || dimensions < 0 || dimensions > 64) {
    throw Error(ErrorKind::corrupt_data, "an object that came is no tensor; do all ranks use the same type?");
  }
  std::vector<std::int64_t> sizes;
  std::size_t expected = c10::elementSize(static_cast<at::ScalarType>(type));
  for (std::int64_t i = 0; i < dimensions; ++i) {
    sizes.push_back(take(bytes));
    // Before anything is allocated: no dimension is larger than what came, unless there are no elements at all.
    if (sizes.back() < 0 || (!bytes.empty() && sizes.back() > static_cast<std::int64_t>(bytes.size()))) {
      refuse_object(bytes.size(), static_cast<std::size_t>(sizes.back()));
    }
    if (__builtin_mul_overflow(expected, static_cast<std::size_t>(sizes.back()), &expected)) {
      refuse_object(bytes.size(), expected);
    }
  }
  if (bytes.size() != expected) refuse_object(bytes.size(), expected);
  at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(static_cast<at::ScalarType>(type)));
  if (expected != 0) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), expected);
  return tensor;
}

}  // namespace lockstep
