#include "lockstep/checkpoint/set_loading.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/machine.h"
#include "lockstep/checkpoint/stored_tensor.h"
#include "lockstep/group/objects.h"

namespace lockstep::internal {
namespace {

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

// damage: that this rank has read.
Checkpoint read_all(SetReader& set, const Readers& readers, const Wanted& wanted, std::optional<Error>& damage) {
  const Manifest& manifest = set.manifest();
  check_room(manifest, wanted);
  Checkpoint checkpoint{.metadata = manifest.metadata};
  std::vector<std::uint64_t> loads(static_cast<std::size_t>(readers.size()));
  for (const auto& [name, tensor] : manifest.tensors) {
    const bool is_wanted_here = wanted(name);
    at::Tensor whole;
    if (is_wanted_here) whole = empty_stored(name, tensor.dtype, tensor.shape);
    for (const Piece& piece : tensor.pieces) {
      const auto reader = std::ranges::min_element(loads);
      const auto reading_rank = static_cast<int>(reader - loads.begin());
      *reader += tensor.row_bytes() * static_cast<std::uint64_t>(piece.end_row - piece.first_row);
      const std::int64_t rows = piece.end_row - piece.first_row;
      at::Tensor part;
      if (is_wanted_here) {
        part = tensor.shape.empty() ? whole : whole.narrow(0, piece.first_row, rows);
      } else {
        std::vector<std::int64_t> shape = tensor.shape;
        if (!shape.empty()) shape.front() = rows;
        part = empty_stored(name, tensor.dtype, shape);
      }
      if (reading_rank == readers.rank() && !damage) {
        try {
          set.read(name, piece, {static_cast<std::byte*>(part.mutable_data_ptr()), part.nbytes()});
        } catch (const Error& error) {
          damage = error;  // the others go on receiving
        }
      }
      if (readers.node && part.numel() != 0) readers.node->broadcast(part, reading_rank, {.name = "checkpoint"});
    }
    if (is_wanted_here) checkpoint.tensors.emplace(name, std::move(whole));
  }
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
