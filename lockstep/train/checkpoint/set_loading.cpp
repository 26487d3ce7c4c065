#include "lockstep/train/checkpoint/set_loading.h"

#include <algorithm>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/machine.h"
#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/tensor_types.h"

namespace lockstep::internal {
namespace {

// More than that in all is damage, or will not fit.
void check_room(const std::string& directory, std::uint64_t bytes) {
  if (bytes <= machine_memory_bytes()) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{}: its tensors need {} bytes, but this machine has {} bytes of memory; load it on a larger "
                          "machine, unless its manifest is damaged",
                          directory, bytes, machine_memory_bytes()));
}

// Into a contiguous tensor on the CPU of the whole shape.
void read_tensor(SetReader& set, const std::string& name, at::Tensor tensor) {
  for (const SetPiece& piece : set.manifest().tensors.at(name).pieces) {
    const at::Tensor rows =
        tensor.dim() == 0 ? tensor : tensor.narrow(0, piece.first_row, piece.end_row - piece.first_row);
    set.read(name, piece, mutable_bytes_of(rows));
  }
}

}  // namespace

Reader reader_of(const ProcessGroup& group) {
  const std::vector<std::string> nodes = group.all_gather_object(boot_id(), {.name = "nodes that load a checkpoint"});
  Reader reader{.number = 0, .count = 0};
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    if (nodes[rank] != nodes[static_cast<std::size_t>(group.rank())]) continue;
    if (rank == static_cast<std::size_t>(group.rank())) reader.number = reader.count;
    ++reader.count;
  }
  return reader;
}

void verify_share(SetReader& set, const Reader& reader) {
  struct Each {
    const std::string* name;
    const SetPiece* piece;
    std::uint64_t bytes;
  };
  std::vector<Each> pieces;
  std::uint64_t all_bytes = 0;
  for (const auto& [name, tensor] : set.manifest().tensors) {
    for (const SetPiece& piece : tensor.pieces) {
      const std::uint64_t bytes = tensor.row_bytes() * static_cast<std::uint64_t>(piece.end_row - piece.first_row);
      pieces.push_back({.name = &name, .piece = &piece, .bytes = bytes});
      all_bytes += bytes;
    }
  }
  // Bytes that follow each other in a file are read one after the other, by one reader.
  std::ranges::stable_sort(pieces, {}, [](const Each& each) { return each.piece->file; });
  std::uint64_t bytes_before = 0;
  for (const Each& each : pieces) {
    const std::uint64_t middle = bytes_before + each.bytes / 2;
    bytes_before += each.bytes;
    const std::size_t number = all_bytes == 0 ? 0 : std::min(middle * reader.count / all_bytes, reader.count - 1);
    if (number == reader.number) set.verify(*each.name, *each.piece);
  }
}

SetContent read_content(SetReader& set, const Wanted& wanted, const Target& target) {
  const Manifest& manifest = set.manifest();
  SetContent content{.checkpoint = {.metadata = manifest.metadata}};
  std::uint64_t bytes = 0;
  std::vector<const std::string*> without_target;
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!wanted(name)) continue;
    if (at::Tensor own = target(name, tensor); own.defined()) {
      content.checkpoint.tensors.emplace(name, own);
      content.own.emplace(name, own.detach());
      continue;
    }
    bytes += std::min<std::uint64_t>(tensor.bytes(), std::uint64_t{1} << 56);
    without_target.push_back(&name);
  }
  check_room(set.path().string(), bytes);
  for (const std::string* name : without_target) {
    const SetTensor& tensor = manifest.tensors.at(*name);
    at::Tensor read = new_tensor(set.path().string(), *name, tensor.dtype, tensor.shape);
    read_tensor(set, *name, read);
    content.checkpoint.tensors.emplace(*name, std::move(read));
  }
  return content;
}

void fill(SetReader& set, const std::map<std::string, at::Tensor>& own) {
  try {
    for (const auto& [name, tensor] : own) read_tensor(set, name, tensor);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}; the checkpoint was undamaged before, and the state is now partly "
                                          "loaded: load it again, or another one",
                                          error.what()));
  }
}

}  // namespace lockstep::internal
