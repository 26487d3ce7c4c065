#include "lockstep/formats/distributed_checkpoint.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/pickle_value.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"
#include "lockstep/formats/safetensors/torch_types.h"

namespace lockstep {

using namespace internal;

namespace {

Bytes read_metadata(const SiblingFiles& files) {
  const std::string path = files.path_of(".metadata");
  const OpenFile file = files.open(".metadata");
  if (file.bytes > PickleLimits::kBytes) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: it has {} bytes; the limit is {}", path, file.bytes, PickleLimits::kBytes));
  }
  return read_at(file.fd.get(), 0, file.bytes, "reading " + path);
}

// Copies a chunk, which is contiguous, to its place in a tensor, row by row.
void place_chunk(const DistributedTensor& tensor, const DistributedChunk& chunk, ByteSpan from, MutableByteSpan out) {
  const std::size_t element = torch_element_size(tensor.dtype);
  const std::size_t dimensions = tensor.shape.size();
  const std::size_t row = element * static_cast<std::size_t>(chunk.sizes.back());
  std::vector<std::int64_t> index(dimensions - 1);
  for (std::size_t done = 0; done < from.size(); done += row) {
    std::size_t to = 0;
    for (std::size_t d = 0; d < dimensions; ++d) {
      const std::int64_t at = chunk.offsets[d] + (d + 1 < dimensions ? index[d] : 0);
      to = to * static_cast<std::size_t>(tensor.shape[d]) + static_cast<std::size_t>(at);
    }
    std::memcpy(out.data() + to * element, from.data() + done, row);
    for (std::size_t d = dimensions - 1; d > 0 && ++index[d - 1] == chunk.sizes[d - 1]; --d) index[d - 1] = 0;
  }
}

// Whether the chunk has all of every dimension but the first, so that it lies in one piece.
bool is_one_piece(const DistributedTensor& tensor, const DistributedChunk& chunk) {
  return tensor.shape.empty() || std::equal(chunk.sizes.begin() + 1, chunk.sizes.end(), tensor.shape.begin() + 1);
}

}  // namespace

DistributedCheckpoint::DistributedCheckpoint(const std::filesystem::path& directory)
    : files_(directory), metadata_(parse_distributed_metadata(read_metadata(files_), files_.path_of(".metadata"))) {}

std::vector<std::string> DistributedCheckpoint::value_names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : metadata_.values) names.push_back(name);
  return names;
}

TorchFile DistributedCheckpoint::open_place(const DistributedPlace& place, const std::string& name) const {
  OpenFile file = files_.open(place.file);
  const std::string where =
      fmt::format("{}, {} bytes at offset {}, {}", files_.path_of(place.file), place.bytes, place.begin, shown(name));
  if (place.begin > file.bytes || place.bytes > file.bytes - place.begin) {
    throw Error(ErrorKind::corrupt_data, fmt::format("{}: the file has only {} bytes", where, file.bytes));
  }
  return TorchFile(std::move(file), place.begin, place.bytes, where);
}

TorchFile DistributedCheckpoint::read_value(const std::string& name) const {
  const auto found = metadata_.values.find(name);
  if (found != metadata_.values.end()) return open_place(found->second, name);
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{} has no non-tensor value {}", files_.directory().string(), shown(name)));
}

void DistributedCheckpoint::read(const DistributedTensor& tensor, MutableByteSpan out) const {
  if (out.size() != tensor.bytes) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: {} has {} bytes, but the output buffer has {}", files_.directory().string(),
                            shown(tensor.name), tensor.bytes, out.size()));
  }
  for (const DistributedChunk& chunk : tensor.chunks) read_chunk(tensor, chunk, out);
}

void DistributedCheckpoint::read_chunk(const DistributedTensor& tensor, const DistributedChunk& chunk,
                                       MutableByteSpan out) const {
  const TorchFile file = open_place(chunk.place, tensor.name);
  const TorchTensor saved = file.tensor(file.root());
  if (saved.shape != chunk.sizes || saved.dtype != tensor.dtype) {
    throw Error(ErrorKind::corrupt_data, fmt::format("{}: it holds {} {}, but .metadata records {} {}", file.name(),
                                                     saved.dtype, saved.shape, tensor.dtype, chunk.sizes));
  }
  if (saved.bytes == 0) return;
  if (is_one_piece(tensor, chunk)) {
    std::size_t begin = 0;
    if (!tensor.shape.empty()) {
      begin = static_cast<std::size_t>(chunk.offsets[0]) * (tensor.bytes / static_cast<std::size_t>(tensor.shape[0]));
    }
    return file.read(saved, out.subspan(begin, saved.bytes));
  }
  std::vector<std::byte> bytes(saved.bytes);
  file.read(saved, bytes);
  place_chunk(tensor, chunk, bytes, out);
}

}  // namespace lockstep
