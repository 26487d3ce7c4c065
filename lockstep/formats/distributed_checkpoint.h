// A directory of torch.distributed.checkpoint, without torch: .metadata, and files with the chunks that each rank has
// saved. directory -> tensors, read whole from their chunks; values that are no tensors. Nothing is ever executed, and
// no file outside of the directory is opened. A tensor's chunks tile it exactly, or the checkpoint is refused.
// Not thread-safe. Blocks for disk I/O. Errors as of TorchFile.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/formats/distributed_metadata.h"
#include "lockstep/formats/sibling_file.h"
#include "lockstep/formats/torch_file.h"

namespace lockstep {

class DistributedCheckpoint {
 public:
  explicit DistributedCheckpoint(const std::filesystem::path& directory);

  const std::vector<DistributedTensor>& tensors() const { return metadata_.tensors; }
  // Names of the values that are not tensors.
  std::vector<std::string> value_names() const;
  // Needs the memory of one chunk. REQUIRES: the tensor is one of tensors(), and `out` has its bytes.
  void read(const DistributedTensor& tensor, MutableByteSpan out) const;
  // Its root is the value. Error{invalid_argument} if there is no such value.
  TorchFile read_value(const std::string& name) const;

 private:
  TorchFile open_place(const DistributedPlace& place, const std::string& name) const;
  void read_chunk(const DistributedTensor& tensor, const DistributedChunk& chunk, MutableByteSpan out) const;

  internal::SiblingFiles files_;
  DistributedMetadata metadata_;
};

}  // namespace lockstep
