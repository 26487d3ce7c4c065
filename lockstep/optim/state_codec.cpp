#include "lockstep/optim/state_codec.h"

#include <cstdint>
#include <cstring>

#include "lockstep/group/objects.h"

namespace lockstep {
namespace {

// A block: its length, then its bytes.
void put_block(std::string& out, std::string_view block) {
  const auto length = static_cast<std::uint64_t>(block.size());
  out.append(reinterpret_cast<const char*>(&length), sizeof length).append(block);
}

std::string_view take_block(std::string_view& bytes) {
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) refuse_object(bytes.size(), sizeof length);
  std::memcpy(&length, bytes.data(), sizeof length);
  bytes.remove_prefix(sizeof length);
  if (length > bytes.size()) refuse_object(bytes.size(), static_cast<std::size_t>(length));
  const std::string_view block = bytes.substr(0, static_cast<std::size_t>(length));
  bytes.remove_prefix(block.size());
  return block;
}

}  // namespace

std::string encode_tensors(const std::map<std::string, at::Tensor>& tensors) {
  std::string bytes;
  for (const auto& [name, tensor] : tensors) {
    put_block(bytes, name);
    put_block(bytes, ObjectCodec<at::Tensor>::encode(tensor.cpu()));
  }
  return bytes;
}

std::map<std::string, at::Tensor> decode_tensors(std::string_view bytes) {
  std::map<std::string, at::Tensor> tensors;
  while (!bytes.empty()) {
    const std::string name(take_block(bytes));
    tensors.insert_or_assign(name, ObjectCodec<at::Tensor>::decode(take_block(bytes)));
  }
  return tensors;
}

}  // namespace lockstep
