#include "lockstep/checkpoint/set_loading.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/machine.h"
#include "lockstep/checkpoint/tensor_types.h"
#include "lockstep/group/objects.h"

namespace lockstep::internal {
namespace {

constexpr std::uint64_t kMostAtOnce = 64 << 20;  // bytes of one broadcast, but for the largest piece

// More than that in all is damage, or will not fit.
void check_room(const Manifest& manifest, const Wanted& wanted) {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : manifest.tensors) {
    if (wanted(name)) bytes += std::min<std::uint64_t>(tensor.bytes(), std::uint64_t{1} << 56);
  }
  if (bytes <= machine_memory_bytes()) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("the checkpoint's tensors take {} bytes; this machine has {} of memory", bytes,
                          machine_memory_bytes()));
}

// A piece, who reads it, and where it goes here.
struct PieceToRead {
  const std::string* name;
  const SetTensor* tensor;
  const Piece* piece;
  int reader;
  bool is_wanted;
  at::Tensor part;  // undefined as long as it is neither wanted nor read here

  std::uint64_t bytes() const {
    return tensor->row_bytes() * static_cast<std::uint64_t>(piece->end_row - piece->first_row);
  }
  void make_room() {
    if (part.defined()) return;
    std::vector<std::int64_t> shape = tensor->shape;
    if (!shape.empty()) shape.front() = piece->end_row - piece->first_row;
    part = new_tensor("a checkpoint", *name, tensor->dtype, shape);
  }
};

// In the manifest's order, each to the rank that has the least to read so far. The same on all ranks of a node.
std::vector<PieceToRead> pieces_of(const Manifest& manifest, const Readers& readers, const Wanted& wanted,
                                   Checkpoint& checkpoint) {
  std::vector<PieceToRead> pieces;
  std::vector<std::uint64_t> loads(static_cast<std::size_t>(readers.size()));
  for (const auto& [name, tensor] : manifest.tensors) {
    at::Tensor whole;
    if (wanted(name)) {
      whole = new_tensor("a checkpoint", name, tensor.dtype, tensor.shape);
      checkpoint.tensors.emplace(name, whole);
    }
    for (const Piece& piece : tensor.pieces) {
      const auto least = std::ranges::min_element(loads);
      PieceToRead each{.name = &name,
                       .tensor = &tensor,
                       .piece = &piece,
                       .reader = static_cast<int>(least - loads.begin()),
                       .is_wanted = whole.defined(),
                       .part = {}};
      *least += each.bytes();
      if (whole.defined()) {
        each.part = whole.dim() == 0 ? whole : whole.narrow(0, piece.first_row, piece.end_row - piece.first_row);
      }
      pieces.push_back(std::move(each));
    }
  }
  return pieces;
}

// All at once, those that are of one type and read by one rank together, up to kMostAtOnce.
void share(std::vector<PieceToRead>& pieces, const ProcessGroup& node) {
  const auto place = [](const PieceToRead& each) { return std::tie(each.reader, each.tensor->dtype); };
  std::ranges::stable_sort(pieces, {}, place);
  for (std::size_t first = 0; first < pieces.size();) {
    std::vector<at::Tensor> parts;
    std::uint64_t bytes = 0;
    std::size_t next = first;
    for (; next < pieces.size() && place(pieces[next]) == place(pieces[first]) && bytes < kMostAtOnce; ++next) {
      PieceToRead& each = pieces[next];
      each.make_room();
      bytes += each.bytes();
      if (each.part.numel() != 0) parts.push_back(each.part);
      if (!each.is_wanted) each.part.reset();
    }
    if (!parts.empty()) node.broadcast(parts, pieces[first].reader, {.name = "checkpoint"});
    first = next;
  }
}

// damage: that this rank has read.
Checkpoint read_all(SetReader& set, const Readers& readers, const Wanted& wanted, std::optional<Error>& damage) {
  const Manifest& manifest = set.manifest();
  check_room(manifest, wanted);
  Checkpoint checkpoint{.metadata = manifest.metadata};
  std::vector<PieceToRead> pieces = pieces_of(manifest, readers, wanted, checkpoint);
  for (PieceToRead& each : pieces) {
    if (each.reader != readers.rank() || damage) continue;
    each.make_room();
    try {
      set.read(*each.name, *each.piece, mutable_bytes_of(each.part));
    } catch (const Error& error) {
      damage = error;  // the others go on, and learn of it afterwards
    }
  }
  if (readers.node) share(pieces, *readers.node);
  return checkpoint;
}

}  // namespace

Readers readers_of(const ProcessGroup& group) {
  const std::vector<std::string> nodes = all_gather_object(group, boot_id(), {.name = "nodes that load a checkpoint"});
  const std::string& mine = nodes[static_cast<std::size_t>(group.rank())];
  const auto color = static_cast<int>(std::ranges::find(nodes, mine) - nodes.begin());
  return {.node = group.split(color, group.rank())};
}

Checkpoint read_set(SetReader& set, const Readers& readers, const Wanted& wanted) {
  std::optional<Error> damage;
  Checkpoint checkpoint;
  try {
    checkpoint = read_all(set, readers, wanted, damage);
  } catch (const Error& error) {
    // The others wait for what this rank would read.
    if (readers.node) readers.node->abort(error.what());
    throw;
  }
  if (damage) throw *damage;
  return checkpoint;
}

}  // namespace lockstep::internal
