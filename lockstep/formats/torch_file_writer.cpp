#include "lockstep/formats/torch_file_writer.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/pickle_opcodes.h"
#include "lockstep/formats/pickle_value.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"
#include "lockstep/formats/safetensors/torch_types.h"
#include "lockstep/formats/strided_read.h"
#include "lockstep/formats/zip_writer.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr std::string_view kArchive = "archive";

[[noreturn]] void refuse_value(const std::string& where, const std::string& why) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("saving a file of torch.save: {}: {}", where.empty() ? "the value" : shown(where), why));
}

struct ListedTensor {
  const TorchTensorSource* source;
  std::string where;
  std::uint64_t bytes;
};

// Values -> a pickle of protocol 2, in the words of torch.save, and the tensors that it refers to, in the order of
// their keys.
class TorchPickler {
 public:
  explicit TorchPickler(const TorchValue& root) {
    op(PickleCode::proto);
    out_.push_back(2);
    value("", root, 0);
    op(PickleCode::stop);
  }
  const Bytes& pickle() const { return out_; }
  const std::vector<ListedTensor>& tensors() const { return tensors_; }

 private:
  void value(const std::string& where, const TorchValue& value, std::size_t depth) {
    if (depth > PickleLimits::kDepth / 2) refuse_value(where, "it is nested too deeply");
    std::visit([&](const auto& held) { put(where, held, depth); }, value.value);
  }

  void put(const std::string&, std::nullptr_t, std::size_t) { op(PickleCode::none); }
  void put(const std::string&, bool value, std::size_t) { op(value ? PickleCode::new_true : PickleCode::new_false); }
  void put(const std::string&, std::int64_t value, std::size_t) { integer(value); }
  void put(const std::string&, double value, std::size_t) {
    op(PickleCode::bin_float);
    number(8, __builtin_bswap64(std::bit_cast<std::uint64_t>(value)));
  }
  void put(const std::string& where, const std::string& value, std::size_t) { text(where, value); }
  void put(const std::string& where, const TorchValue::List& items, std::size_t depth) {
    op(PickleCode::empty_list);
    put_items(where, items, depth);
    op(PickleCode::appends);
  }
  void put(const std::string& where, const TorchValue::Tuple& tuple, std::size_t depth) {
    put_items(where, tuple.items, depth);
    op(PickleCode::tuple);
  }
  void put_items(const std::string& where, const TorchValue::List& items, std::size_t depth) {
    op(PickleCode::mark);
    for (std::size_t i = 0; i < items.size(); ++i) value(below(where, std::to_string(i)), items[i], depth + 1);
  }
  void put(const std::string& where, const TorchValue::Dict& items, std::size_t depth) {
    op(PickleCode::empty_dict);
    op(PickleCode::mark);
    std::set<TorchValue::Key> keys;
    for (const auto& [key, item] : items) {
      const auto* name = std::get_if<std::string>(&key);
      const std::string path = below(where, name != nullptr ? *name : std::to_string(std::get<std::int64_t>(key)));
      if (!keys.insert(key).second) refuse_value(path, "the key appears twice");
      if (name != nullptr) {
        text(path, *name);
      } else {
        integer(std::get<std::int64_t>(key));
      }
      value(path, item, depth + 1);
    }
    op(PickleCode::set_items);
  }

  void put(const std::string& where, const TorchTensorSource& tensor, std::size_t) {
    const TorchType* type = find_torch_type(tensor.dtype);
    if (type == nullptr) refuse_value(where, fmt::format("the type {} cannot be stored", shown(tensor.dtype)));
    if (tensor.shape.size() > PickleLimits::kDimensions ||
        std::ranges::any_of(tensor.shape, [](auto n) { return n < 0; })) {
      refuse_value(where, fmt::format("a tensor of {} cannot be stored", tensor.shape));
    }
    const std::vector<std::int64_t> strides = row_major(tensor.shape);
    const std::uint64_t bytes =
        checked_strided_bytes({tensor.shape, strides, 0, type->element_bytes},
                              std::numeric_limits<std::uint64_t>::max(), "saving a file of torch.save");
    const bool has_storage_type = !type->storage.empty();
    global("torch._utils", has_storage_type ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    op(PickleCode::mark);
    op(PickleCode::mark);
    text(where, "storage");
    global(has_storage_type ? "torch" : "torch.storage", has_storage_type ? type->storage : "UntypedStorage");
    text(where, std::to_string(place_of(where, tensor, bytes)));
    text(where, "cpu");
    integer(static_cast<std::int64_t>(has_storage_type ? bytes / type->element_bytes : bytes));
    op(PickleCode::tuple);
    op(PickleCode::bin_persid);
    integer(0);
    numbers(tensor.shape);
    numbers(strides);
    op(tensor.requires_grad ? PickleCode::new_true : PickleCode::new_false);
    global("collections", "OrderedDict");
    op(PickleCode::empty_tuple);
    op(PickleCode::reduce);
    if (!has_storage_type) global("torch", type->torch);
    op(PickleCode::tuple);
    op(PickleCode::reduce);
  }

  // The number of its storage, which an earlier tensor may have.
  std::size_t place_of(const std::string& where, const TorchTensorSource& tensor, std::uint64_t bytes) {
    const std::size_t next = tensors_.size();
    const auto [named, is_new] =
        tensor.storage.empty() ? std::pair(storages_.end(), true) : storages_.emplace(tensor.storage, next);
    if (!is_new) {
      const ListedTensor& first = tensors_[named->second];
      if (first.bytes == bytes && first.source->dtype == tensor.dtype) return named->second;
      refuse_value(where, fmt::format("it shares the memory of {}, but not its type and size", shown(first.where)));
    }
    tensors_.push_back({&tensor, where, bytes});
    return next;
  }

  static std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& shape) {
    std::vector<std::int64_t> strides(shape.size());
    std::uint64_t stride = 1;  // wraps only for a shape that is refused
    for (std::size_t i = shape.size(); i-- > 0;) {
      strides[i] = static_cast<std::int64_t>(stride & std::numeric_limits<std::int64_t>::max());
      stride *= static_cast<std::uint64_t>(std::max<std::int64_t>(shape[i], 1));
    }
    return strides;
  }

  static std::string below(const std::string& where, const std::string& key) {
    return where.empty() ? key : fmt::format("{}.{}", where, key);
  }

  void op(PickleCode code) { out_.push_back(static_cast<char>(code)); }
  void number(std::size_t width, std::uint64_t value) {
    for (std::size_t i = 0; i < width; ++i) out_.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
  void integer(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (value >= 0 && value < 256) {
      op(PickleCode::bin_int1);
      number(1, bits);
    } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
      op(PickleCode::bin_int);
      number(4, bits);
    } else {
      op(PickleCode::long1);
      out_.push_back(8);
      number(8, bits);
    }
  }
  void text(const std::string& where, std::string_view text) {
    if (!is_utf8(text)) refuse_value(where, "a text is not UTF-8");
    if (text.size() > PickleLimits::kBytes)
      refuse_value(where, fmt::format("a text is too long: {} bytes", text.size()));
    op(PickleCode::bin_unicode);
    number(4, text.size());
    out_ += text;
  }
  void global(std::string_view module, std::string_view name) {
    op(PickleCode::global);
    out_ += fmt::format("{}\n{}\n", module, name);
  }
  void numbers(const std::vector<std::int64_t>& values) {
    op(PickleCode::mark);
    for (const std::int64_t each : values) integer(each);
    op(PickleCode::tuple);
  }

  Bytes out_;
  std::vector<ListedTensor> tensors_;            // one of each storage
  std::map<std::string, std::size_t> storages_;  // that have a name
};

void write_tensor(ZipWriter& zip, const std::string& name, const ListedTensor& tensor) {
  zip.begin(name, tensor.bytes);
  std::uint64_t left = tensor.bytes;
  const auto sink = [&](ByteSpan bytes) {
    if (bytes.size() > left) refuse_value(tensor.where, fmt::format("its data has more than {} bytes", tensor.bytes));
    left -= bytes.size();
    zip.write(bytes);
  };
  if (tensor.source->write) tensor.source->write(sink);
  if (left > 0) {
    refuse_value(tensor.where,
                 fmt::format("its data has {} bytes, but its shape needs {}", tensor.bytes - left, tensor.bytes));
  }
  zip.end();
}

}  // namespace

TorchTensorSource tensor_of(std::string dtype, std::vector<std::int64_t> shape, ByteSpan bytes) {
  return {
      .dtype = std::move(dtype), .shape = std::move(shape), .write = [bytes](const ByteSink& sink) { sink(bytes); }};
}

void write_torch_file(const std::filesystem::path& path, const TorchValue& root) {
  const TorchPickler pickler(root);
  AtomicFile file(path);
  ZipWriter zip(file);
  zip.add(fmt::format("{}/data.pkl", kArchive), pickler.pickle());
  zip.add(fmt::format("{}/.format_version", kArchive), "1");
  zip.add(fmt::format("{}/.storage_alignment", kArchive), "64");
  zip.add(fmt::format("{}/byteorder", kArchive), "little");
  for (std::size_t i = 0; i < pickler.tensors().size(); ++i) {
    write_tensor(zip, fmt::format("{}/data/{}", kArchive, i), pickler.tensors()[i]);
  }
  zip.add(fmt::format("{}/version", kArchive), "3\n");
  zip.finish();
  file.publish();
}

}  // namespace lockstep
