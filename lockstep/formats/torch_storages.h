// Where the values and the storages of a file of torch.save are: in a zip archive, or, in legacy files, one after the
// other. Both find a storage by its key. Not thread-safe; errors as of TorchFile.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/formats/pickle_tree.h"
#include "lockstep/formats/zip_archive.h"

namespace lockstep::internal {

class TorchStorages {
 public:
  virtual ~TorchStorages() = default;
  // Error{corrupt_data} if there is no such storage.
  virtual std::uint64_t size_bytes(const std::string& key) const = 0;
  virtual bool has_checksums() const = 0;
  // REQUIRES: the storage has these bytes.
  virtual void read(const std::string& key, std::uint64_t offset, MutableByteSpan out) const = 0;
};

enum class ByteOrder : std::uint8_t { little, big };

struct TorchContent {
  std::unique_ptr<const PickleTree> tree;
  std::unique_ptr<TorchStorages> storages;
  ByteOrder order = ByteOrder::little;
};

// `name` names the file in errors; its descriptor must stay open.
TorchContent open_torch_archive(const FilePart& part, const std::string& name);
TorchContent open_torch_legacy(const FilePart& part, const std::string& name);

}  // namespace lockstep::internal
