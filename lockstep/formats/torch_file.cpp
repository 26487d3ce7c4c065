#include "lockstep/formats/torch_file.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/file_kind.h"
#include "lockstep/formats/safetensors_parser.h"
#include "lockstep/formats/strided_read.h"
#include "lockstep/formats/torch_storages.h"
#include "lockstep/formats/torch_types.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr std::size_t kNameBytes = std::size_t{256} << 20;  // of all names together

StridedLayout layout_of(const TorchTensor& tensor) {
  return {.shape = tensor.shape,
          .strides = tensor.strides,
          .offset = tensor.offset,
          .element_bytes = torch_element_size(tensor.dtype)};
}

TorchContent open_content(const FilePart& part, const std::string& name) {
  const Bytes first =
      read_at(part.fd, part.begin, std::min<std::uint64_t>(kFileKindBytes, part.bytes), "reading " + name);
  switch (const FileKind kind = recognise_file(first)) {
    case FileKind::torch_archive:
    case FileKind::zip: return open_torch_archive(part, name);
    case FileKind::torch_legacy: return open_torch_legacy(part, name);
    default: throw Error(ErrorKind::invalid_argument, fmt::format("{} {}", name, how_to_read(kind)));
  }
}

}  // namespace

struct TorchFile::Content {
  OpenFile file;
  std::string name;
  TorchContent content;
};

TorchFile::TorchFile(const std::filesystem::path& path)
    : TorchFile(open_regular_file(path.string()), 0, std::numeric_limits<std::uint64_t>::max(), path.string()) {}

TorchFile::TorchFile(OpenFile file, std::uint64_t begin, std::uint64_t bytes, const std::string& name)
    : content_(std::make_unique<Content>(Content{std::move(file), name, {}})) {
  const std::uint64_t all = content_->file.bytes;
  begin = std::min(begin, all);
  const FilePart part{.fd = content_->file.fd.get(), .begin = begin, .bytes = std::min(bytes, all - begin)};
  content_->content = open_content(part, name);
}

TorchFile::TorchFile(TorchFile&&) noexcept = default;
TorchFile& TorchFile::operator=(TorchFile&&) noexcept = default;
TorchFile::~TorchFile() = default;

const std::string& TorchFile::name() const { return content_->name; }
PickleValue TorchFile::root() const { return content_->content.tree->root(); }

TorchTensor TorchFile::tensor(const PickleValue& value) const {
  PickleTensor found = value.tensor();
  TorchTensor tensor{.dtype = std::move(found.dtype),
                     .shape = std::move(found.shape),
                     .strides = std::move(found.strides),
                     .offset = found.offset,
                     .storage = std::move(found.storage.key),
                     .device = std::move(found.storage.device),
                     .requires_grad = found.requires_grad,
                     .is_parameter = found.is_parameter};
  const std::string origin = fmt::format("{}: storage {}", name(), shown(tensor.storage));
  tensor.bytes = checked_strided_bytes(layout_of(tensor), found.storage.bytes, origin);
  if (tensor.bytes > 0 && content_->content.storages->size_bytes(tensor.storage) < found.storage.bytes) {
    throw Error(ErrorKind::corrupt_data,
                fmt::format("{}: it has {} bytes, {} were saved", origin,
                            content_->content.storages->size_bytes(tensor.storage), found.storage.bytes));
  }
  return tensor;
}

void TorchFile::read(const TorchTensor& tensor, MutableByteSpan out) const {
  const TorchStorages& storages = *content_->content.storages;
  if (tensor.bytes == 0) return;
  const std::uint64_t storage_bytes = storages.size_bytes(tensor.storage);
  const StridedLayout layout = layout_of(tensor);
  const std::uint64_t bytes = checked_strided_bytes(layout, storage_bytes, name());
  if (bytes != out.size()) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: a tensor of {} bytes is read into {}", name(), bytes, out.size()));
  }
  read_strided(
      layout, storage_bytes,
      [&](std::uint64_t offset, MutableByteSpan part) { storages.read(tensor.storage, offset, part); }, out);
}

void TorchFile::read(const TorchTensor& tensor, std::uint64_t begin, MutableByteSpan out) const {
  if (out.empty()) return;
  const std::uint64_t first = static_cast<std::uint64_t>(tensor.offset) * torch_element_size(tensor.dtype);
  content_->content.storages->read(tensor.storage, first + begin, out);
}

bool TorchFile::has_checksums() const { return content_->content.storages->has_checksums(); }

bool is_row_major(const TorchTensor& tensor) {
  if (tensor.bytes == 0) return true;  // whatever the dimensions are
  std::int64_t stride = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != stride) return false;
    stride *= tensor.shape[i];
  }
  return true;
}

namespace {

class Flattener {
 public:
  std::vector<NamedPickleValue> run(const PickleValue& root) {
    visit("", root);
    check_names();
    return std::move(values_);
  }

 private:
  void visit(const std::string& name, const PickleValue& value) {
    switch (value.kind()) {
      case PickleKind::dict: return visit_dict(name, value);
      case PickleKind::list:
      case PickleKind::tuple:
      case PickleKind::set:
        for (std::size_t i = 0; i < value.size(); ++i) visit(below(name, std::to_string(i)), value.item(i));
        return;
      case PickleKind::object:
        if (value.class_name().starts_with("__torch__.")) {
          if (value.state()) visit_dict(name, *value.state());
          return;
        }
        [[fallthrough]];
      default: values_.push_back({name, value});
    }
  }

  void visit_dict(const std::string& name, const PickleValue& dict) {
    for (std::size_t i = 0; i < dict.size(); ++i) {
      const PickleValue key = dict.key(i);
      if (key.is(PickleKind::integer)) {
        visit(below(name, std::to_string(key.integer())), dict.value(i));
      } else if (key.is(PickleKind::text)) {
        visit(below(name, key.text()), dict.value(i));
      } else {
        key.refuse(
            fmt::format("a key of the dict {} is {}, neither a str nor an int", shown(name), to_string(key.kind())));
      }
    }
  }

  std::string below(const std::string& name, std::string_view key) {
    bytes_ += name.size() + key.size();
    if (bytes_ > kNameBytes) {
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("the names of all values take more than {} bytes", kNameBytes));
    }
    return name.empty() ? std::string(key) : fmt::format("{}.{}", name, key);
  }

  void check_names() const {
    std::set<std::string_view> names;
    for (const NamedPickleValue& each : values_) {
      if (names.insert(each.name).second) continue;
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("two values are called {} once keys are joined by '.'", shown(each.name)));
    }
  }

  std::vector<NamedPickleValue> values_;
  std::size_t bytes_ = 0;
};

}  // namespace

std::vector<NamedPickleValue> flatten(const PickleValue& root) { return Flattener().run(root); }

}  // namespace lockstep
