// Files of torch.save before PyTorch 1.6: one after the other, pickles of a magic number, a version, the machine, the
// saved value and the keys of its storages; then the number of elements and the bytes of each storage.
#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/pickle_opcodes.h"
#include "lockstep/formats/pickle_reader.h"
#include "lockstep/formats/safetensors/file_kind.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"
#include "lockstep/formats/safetensors/torch_types.h"
#include "lockstep/formats/torch_storages.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kFirstRead = std::size_t{64} << 10;  // of a pickle whose length is not known
constexpr std::int64_t kLegacyProtocol = 1001;
constexpr std::size_t kCountBytes = 8;

struct StoragePlace {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

class LegacyStorages final : public TorchStorages {
 public:
  LegacyStorages(const FilePart& part, std::string name) : part_(part), name_(std::move(name)) {}

  void add(const std::string& key, StoragePlace place) {
    if (!places_.emplace(key, place).second) fail(fmt::format("the storage {} appears twice", shown(key)));
  }
  std::uint64_t size_bytes(const std::string& key) const override { return place(key).bytes; }
  bool has_checksums() const override { return false; }
  void read(const std::string& key, std::uint64_t offset, MutableByteSpan out) const override {
    const std::uint64_t begin = place(key).begin + offset;
    const ssize_t count = read_at(part_.fd, part_.begin + begin, out);
    if (count < 0) throw system_error(fmt::format("reading {} at byte {}", name_, begin), errno);
    if (static_cast<std::size_t>(count) != out.size()) {
      fail(fmt::format("it ends at byte {}", begin + static_cast<std::uint64_t>(count)));
    }
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ErrorKind::corrupt_data, fmt::format("{} is damaged: {}", name_, why));
  }

 private:
  const StoragePlace& place(const std::string& key) const {
    const auto found = places_.find(key);
    if (found == places_.end()) fail(fmt::format("the storage {} is missing", shown(key)));
    return found->second;
  }

  FilePart part_;
  std::string name_;
  std::map<std::string, StoragePlace> places_;
};

// Reads the file from `at` on.
struct LegacyCursor {
  FilePart part;
  const std::string& name;
  std::uint64_t at = 0;

  Bytes bytes(std::uint64_t count) const {
    return read_at(part.fd, part.begin + at, std::min(count, part.bytes - at), "reading " + name);
  }
  std::unique_ptr<const PickleTree> pickle() {
    for (std::uint64_t count = kFirstRead;; count *= 2) {
      Bytes text = bytes(count);
      const std::size_t end = pickle_end(text, 0, name);
      if (end != ByteView::npos) {
        text.resize(end);
        at += end;
        return read_pickle(std::move(text), name);
      }
      if (text.size() < count || count > PickleLimits::kBytes) {
        throw Error(
            ErrorKind::corrupt_data,
            fmt::format("{} is damaged: the pickle at byte {} has no end within {} bytes", name, at, text.size()));
      }
    }
  }
};

// The size of an element of each storage that a value refers to.
std::map<std::string, std::uint64_t> element_sizes(const PickleTree& tree) {
  std::map<std::string, std::uint64_t> sizes;
  for (std::uint32_t index = 0; index < tree.size(); ++index) {
    const PickleValue value(tree, index);
    if (!value.is(PickleKind::storage)) continue;
    const PickleStorage storage = value.storage();
    sizes.emplace(storage.key, torch_element_size(storage.dtype));
  }
  return sizes;
}

void check_protocol(PickleValue protocol, const std::string& name) {
  if (protocol.integer() == kLegacyProtocol) return;
  throw Error(ErrorKind::invalid_argument, fmt::format("{}: it is in the old format of torch.save(), with protocol {}; "
                                                       "only {} is supported: save it again with a newer PyTorch",
                                                       name, protocol.integer(), kLegacyProtocol));
}

}  // namespace

TorchContent open_torch_legacy(const FilePart& part, const std::string& name) {
  LegacyCursor cursor{part, name};
  cursor.at = kTorchLegacyMagic.size();
  check_protocol(cursor.pickle()->root(), name);
  cursor.pickle();  // of the machine: whatever its byte order was, the lowest byte of a number comes first in the file
  TorchContent content{.tree = cursor.pickle(), .storages = nullptr};
  const auto keys = cursor.pickle();
  const std::map<std::string, std::uint64_t> sizes = element_sizes(*content.tree);
  auto storages = std::make_unique<LegacyStorages>(part, name);
  for (std::size_t i = 0; i < keys->root().size(); ++i) {
    const std::string key(keys->root().item(i).text());
    const Bytes count = cursor.bytes(kCountBytes);
    const auto size = sizes.find(key);
    if (size == sizes.end()) storages->fail(fmt::format("no tensor uses the storage {}", shown(key)));
    if (count.size() != kCountBytes) storages->fail(fmt::format("it ends at byte {}", cursor.at + count.size()));
    std::uint64_t elements = 0;
    for (std::size_t k = 0; k < kCountBytes; ++k) {
      elements |= std::uint64_t{static_cast<std::uint8_t>(count[k])} << (8 * k);
    }
    cursor.at += kCountBytes;
    if (elements > (part.bytes - cursor.at) / size->second) {
      storages->fail(fmt::format("the storage {} has {} elements of {} bytes, but the file has only {} bytes",
                                 shown(key), elements, size->second, part.bytes));
    }
    storages->add(key, {.begin = cursor.at, .bytes = elements * size->second});
    cursor.at += elements * size->second;
  }
  if (cursor.at != part.bytes) storages->fail(fmt::format("{} more bytes follow its storages", part.bytes - cursor.at));
  content.storages = std::move(storages);
  return content;
}

}  // namespace lockstep::internal
