// Files of torch.save that are zip archives: <archive>/data.pkl, <archive>/byteorder, and a storage each in
// <archive>/data/<key>.
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/pickle_reader.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"
#include "lockstep/formats/torch_storages.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kPickleEntry = "/data.pkl";
constexpr std::uint64_t kByteOrderBytes = 16;

class ArchiveStorages final : public TorchStorages {
 public:
  ArchiveStorages(std::unique_ptr<const ZipArchive> archive, std::string folder, std::string name)
      : archive_(std::move(archive)), folder_(std::move(folder)), name_(std::move(name)) {}

  std::uint64_t size_bytes(const std::string& key) const override { return entry(key).bytes; }
  bool has_checksums() const override { return true; }
  void read(const std::string& key, std::uint64_t offset, MutableByteSpan out) const override {
    const ZipEntry& found = entry(key);
    if (offset == 0 && out.size() == found.bytes) return archive_->read_whole(found, out);
    archive_->read(found, offset, out);
  }

 private:
  const ZipEntry& entry(const std::string& key) const {
    const ZipEntry* found = archive_->find(folder_ + "/data/" + key);
    if (found == nullptr) {
      throw Error(ErrorKind::corrupt_data, fmt::format("{} is damaged: the storage {} is missing", name_, shown(key)));
    }
    return *found;
  }

  std::unique_ptr<const ZipArchive> archive_;
  std::string folder_;
  std::string name_;
};

// The folder that holds all entries: the name of <folder>/data.pkl.
std::string find_folder(const ZipArchive& archive, const std::string& name) {
  const ZipEntry* pickle = nullptr;
  for (const ZipEntry& entry : archive.entries()) {
    if (entry.name.find('/') + kPickleEntry.size() != entry.name.size() || !entry.name.ends_with(kPickleEntry))
      continue;
    if (pickle != nullptr) {
      throw Error(ErrorKind::corrupt_data,
                  fmt::format("{} is damaged: it has both {} and {}", name, shown(pickle->name), shown(entry.name)));
    }
    pickle = &entry;
  }
  if (pickle != nullptr) return pickle->name.substr(0, pickle->name.size() - kPickleEntry.size());
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{} is a zip archive, but not one of torch.save: it has no data.pkl", name));
}

}  // namespace

TorchContent open_torch_archive(const FilePart& part, const std::string& name) {
  auto archive = std::make_unique<const ZipArchive>(part, name);
  const std::string folder = find_folder(*archive, name);
  TorchContent content;
  if (const ZipEntry* order = archive->find(folder + "/byteorder")) {
    const Bytes text = archive->read_whole(*order, kByteOrderBytes);
    if (text != "little" && text != "big") {
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("{}: its byte order is {}, neither 'little' nor 'big'", name, shown(text)));
    }
    if (text == "big") content.order = ByteOrder::big;
  }
  const ZipEntry& pickle = *archive->find(folder + std::string(kPickleEntry));
  content.tree = read_pickle(archive->read_whole(pickle, PickleLimits::kBytes), name);
  content.storages = std::make_unique<ArchiveStorages>(std::move(archive), folder, name);
  return content;
}

}  // namespace lockstep::internal
