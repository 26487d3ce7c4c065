// The contents of the file .metadata of a distributed checkpoint: tensors made of chunks, other values, and the file
// and position of each. pickle -> read_pickle() -> DistributedMetadata. Pure.
// Error{corrupt_data}: chunks that do not tile their tensor exactly, entries without position, file names that lead out
// of the directory. Error{invalid_argument}: metadata that Lockstep does not read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"

namespace lockstep {

// Where an entry lies.
struct DistributedPlace {
  std::string file;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

struct DistributedChunk {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> sizes;
  DistributedPlace place;
};

struct DistributedTensor {
  std::string name;
  std::string dtype;  // as safetensors name it
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
  std::vector<DistributedChunk> chunks;  // they tile the tensor
};

struct DistributedMetadata {
  std::vector<DistributedTensor> tensors;
  std::map<std::string, DistributedPlace> values;
};

namespace internal {

DistributedMetadata parse_distributed_metadata(Bytes pickle, const std::string& origin);

// Every element of the shape lies in exactly one chunk.
void check_tiling(const DistributedTensor& tensor, const std::string& origin);

}  // namespace internal
}  // namespace lockstep
