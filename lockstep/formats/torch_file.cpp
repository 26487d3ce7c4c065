#include "lockstep/formats/torch_file.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/element_changes.h"
#include "lockstep/formats/pickle_text.h"
#include "lockstep/formats/safetensors/file_kind.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"
#include "lockstep/formats/safetensors/torch_types.h"
#include "lockstep/formats/strided_read.h"
#include "lockstep/formats/torch_storages.h"

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

ElementChanges changes_of(const TorchTensor& tensor) {
  return {
      .swapped_bytes = tensor.swapped_bytes, .is_conjugated = tensor.is_conjugated, .is_negated = tensor.is_negated};
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
                     .is_parameter = found.is_parameter,
                     .is_conjugated = found.is_conjugated,
                     .is_negated = found.is_negated};
  if (content_->content.order == ByteOrder::big) tensor.swapped_bytes = number_bytes(found.storage.dtype);
  const std::string origin = fmt::format("{}: storage {}", name(), shown(tensor.storage));
  tensor.bytes = checked_strided_bytes(layout_of(tensor), found.storage.bytes, origin);
  if (tensor.bytes > 0 && content_->content.storages->size_bytes(tensor.storage) < found.storage.bytes) {
    throw Error(ErrorKind::corrupt_data,
                fmt::format("{}: it has {} bytes, but {} were saved", origin,
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
                fmt::format("{}: a tensor has {} bytes, but the output buffer has {}", name(), bytes, out.size()));
  }
  read_strided(
      layout, storage_bytes,
      [&](std::uint64_t offset, MutableByteSpan part) { storages.read(tensor.storage, offset, part); }, out);
  change_elements(tensor.dtype, changes_of(tensor), out);
}

void TorchFile::read(const TorchTensor& tensor, std::uint64_t begin, MutableByteSpan out) const {
  if (out.empty()) return;
  const std::uint64_t element = torch_element_size(tensor.dtype);
  const std::uint64_t first = static_cast<std::uint64_t>(tensor.offset) * element;
  const TorchStorages& storages = *content_->content.storages;
  if (!changes_of(tensor).any()) return storages.read(tensor.storage, first + begin, out);
  // Whole elements.
  const std::uint64_t before = begin % element;
  const std::uint64_t end = (begin + out.size() + element - 1) / element * element;
  std::vector<std::byte> elements(end - (begin - before));
  storages.read(tensor.storage, first + begin - before, elements);
  change_elements(tensor.dtype, changes_of(tensor), elements);
  std::copy_n(elements.begin() + static_cast<std::ptrdiff_t>(before), out.size(), out.begin());
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
      case PickleKind::opaque: values_.push_back({name, value}); return visit_opaque(name, value);
      case PickleKind::object:
        if (value.class_name().starts_with("__torch__.")) {
          if (value.state()) visit_dict(name, *value.state());
          return;
        }
        [[fallthrough]];
      default: values_.push_back({name, value});
    }
  }

  void visit_opaque(const std::string& name, const PickleValue& value) {
    if (!seen_.insert(value.number_in_tree()).second) return;
    visit_tensors(below(name, "arguments"), value.arguments());
    if (value.items()) visit_tensors(name, *value.items());
    if (value.state()) visit_tensors(name, *value.state());
  }

  // Those in an opaque value, each once.
  void visit_tensors(const std::string& name, const PickleValue& value) {
    if (value.is_tensor()) {
      if (seen_.insert(value.number_in_tree()).second) values_.push_back({name, value});
      return;
    }
    if (value.is(PickleKind::opaque)) return visit_opaque(name, value);
    const bool is_dict = value.is(PickleKind::dict);
    const bool is_list = value.is(PickleKind::list) || value.is(PickleKind::tuple) || value.is(PickleKind::set);
    if ((!is_dict && !is_list) || !seen_.insert(value.number_in_tree()).second) return;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string inner = below(name, is_dict ? dict_key_text(value.key(i)) : std::to_string(i));
      visit_tensors(inner, is_dict ? value.value(i) : value.item(i));
    }
  }

  void visit_dict(const std::string& name, const PickleValue& dict) {
    for (std::size_t i = 0; i < dict.size(); ++i) {
      const PickleValue key = dict.key(i);
      visit(key.is(PickleKind::text) ? below(name, key.text()) : below(name, dict_key_text(key)), dict.value(i));
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
                  fmt::format("two values have the name {} after keys are joined by '.'", shown(each.name)));
    }
  }

  std::vector<NamedPickleValue> values_;
  std::set<std::uint32_t> seen_;  // in opaque values
  std::size_t bytes_ = 0;
};

}  // namespace

std::vector<NamedPickleValue> flatten(const PickleValue& root) { return Flattener().run(root); }

}  // namespace lockstep
