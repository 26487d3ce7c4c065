// The part of PickleMachine for calls that make tensors: plain ones of elements in a storage, and others, which become
// their plain parts.
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/formats/pickle_machine.h"
#include "lockstep/formats/safetensors/torch_types.h"

namespace lockstep::internal {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 56;

// Of a sparse tensor whose rows, or columns, are compressed.
struct IndexNames {
  std::string_view layout;
  std::string_view compressed;
  std::string_view plain;
};
constexpr IndexNames kIndexNames[] = {{"torch.sparse_csr", "crow_indices", "col_indices"},
                                      {"torch.sparse_bsr", "crow_indices", "col_indices"},
                                      {"torch.sparse_csc", "ccol_indices", "row_indices"},
                                      {"torch.sparse_bsc", "ccol_indices", "row_indices"}};

// The constant that a quantised storage's elements are of; empty for others.
std::string_view quantised_type(std::string_view storage) {
  if (storage.ends_with(".QInt8Storage")) return "torch.qint8";
  if (storage.ends_with(".QUInt8Storage")) return "torch.quint8";
  if (storage.ends_with(".QInt32Storage")) return "torch.qint32";
  if (storage.ends_with(".QUInt4x2Storage")) return "torch.quint4x2";
  return storage.ends_with(".QUInt2x4Storage") ? "torch.quint2x4" : "";
}

bool is_packed(std::string_view type) { return type == "torch.quint4x2" || type == "torch.quint2x4"; }

}  // namespace

// ("storage", type, key, device, elements), and in the legacy format None, or (key, begin, elements) of a part of it;
// or
// ("module", class, the file and the text of its source) in the legacy format.
PickleMachine::Index PickleMachine::persistent(Index id) {
  const std::vector<Index>& given = expect(id, PickleKind::tuple, "a persistent id").children;
  const std::string_view kind = given.empty() ? "" : expect(given[0], PickleKind::text, "its kind").text;
  if (kind == "module" && given.size() == 4) return given[1];
  if ((given.size() != 5 && given.size() != 6) || kind != "storage") {
    corrupt("a persistent id does not name a storage");
  }
  const PickleNode& type = expect(given[1], PickleKind::name, "the type of a storage");
  if (type.meaning->role == PickleRole::unknown) return opaque(type.text, id);
  if (type.meaning->role != PickleRole::storage_type) corrupt(fmt::format("{} is not a storage type", type.text));
  const auto count = [&](Index index, std::string_view what) {
    const std::int64_t value = expect(index, PickleKind::integer, what).integer;
    if (value < 0 || value > kMostElements)
      corrupt(fmt::format("{} is {}; expected 0 to {}", what, value, kMostElements));
  };
  count(given[4], "the size of a storage");
  expect(given[3], PickleKind::text, "the device of a storage");
  PickleNode storage{.kind = PickleKind::storage,
                     .integer = node(given[4]).integer,
                     .text = expect(given[2], PickleKind::text, "the key of a storage").text,
                     .children = {given[1], given[3]}};
  if (given.size() == 6 && node(given[5]).kind != PickleKind::none) {
    const std::vector<Index>& part = expect(given[5], PickleKind::tuple, "the view of a storage").children;
    if (part.size() != 3) corrupt("the view of a storage needs a key, an offset and a size");
    count(part[1], "the offset of the view of a storage");
    count(part[2], "the size of the view of a storage");
    storage.children.insert(storage.children.end(), {part[1], part[2]});
  }
  return add(std::move(storage));
}

void PickleMachine::check_shape(Index index, std::string_view what) {
  const std::vector<Index>& sizes = expect(index, PickleKind::tuple, what).children;
  if (sizes.size() > PickleLimits::kDimensions) {
    corrupt(fmt::format("{} has {} dimensions; the limit is {}", what, sizes.size(), PickleLimits::kDimensions));
  }
  for (const Index each : sizes) {
    const std::int64_t size = expect(each, PickleKind::integer, what).integer;
    if (size < 0) corrupt(fmt::format("{} has the invalid dimension {}", what, size));
  }
}

PickleMachine::Index PickleMachine::parts(std::initializer_list<std::pair<std::string_view, Index>> parts) {
  PickleNode dict{.kind = PickleKind::dict};
  for (const auto& [name, value] : parts) {
    if (value != kNoNode) dict.children.insert(dict.children.end(), {text_value(name), value});
  }
  check_held(dict.children.size());
  return add(std::move(dict));
}

PickleMachine::Index PickleMachine::call_tensor(Index function, Index arguments) {
  const std::vector<Index>& given = node(arguments).children;
  const auto need = [&](std::size_t least, std::size_t most) {
    if (given.size() < least || given.size() > most) {
      corrupt(fmt::format("{} is called with {} arguments", node(function).text, given.size()));
    }
  };
  switch (node(function).meaning->role) {
    case PickleRole::tensor_with_attributes: return with_attributes(function, arguments);
    case PickleRole::tensor_of_device: return tensor_of_device(function, arguments);
    case PickleRole::parameter: return parameter(given);
    case PickleRole::sparse_tensor: return sparse_tensor(function, arguments);
    case PickleRole::quantised_tensor: return quantised_tensor(given);
    case PickleRole::tensor_class: return tensor_object(function, arguments);
    case PickleRole::nested_tensor:
      need(4, 4);
      return parts({{"layout", text_value("nested")},
                    {"buffer", given[0]},
                    {"sizes", given[1]},
                    {"strides", given[2]},
                    {"offsets", given[3]}});
    case PickleRole::meta_tensor:  // (type, shape, strides, requires_grad)
      need(4, 4);
      return parts({{"device", text_value("meta")}, {"type", given[0]}, {"size", given[1]}, {"strides", given[2]}});
    case PickleRole::wrapper_tensor:  // (class, type, shape, strides, offset, layout, device, requires_grad)
      need(4, 8);
      return parts({{"class", given[0]}, {"type", given[1]}, {"size", given[2]}, {"strides", given[3]}});
    default: return plain_tensor(function, arguments);
  }
}

// {"conj": True}: its elements differ from the stored ones.
bool PickleMachine::take_metadata(PickleNode& tensor, Index metadata) const {
  if (node(metadata).kind == PickleKind::none) return true;
  if (node(metadata).kind != PickleKind::dict) return false;
  const std::vector<Index>& items = node(metadata).children;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const bool is_set = node(items[i + 1]).is_true;
    if (node(items[i]).text == "conj" && node(items[i + 1]).kind == PickleKind::boolean) {
      tensor.is_conjugated = is_set;
    } else if (node(items[i]).text == "neg" && node(items[i + 1]).kind == PickleKind::boolean) {
      tensor.is_negated = is_set;
    } else {
      return false;
    }
  }
  return true;
}

// (storage, offset, shape, strides[, requires_grad, hooks[, type][, metadata]])
PickleMachine::Index PickleMachine::plain_tensor(Index function, Index arguments) {
  const PickleRole role = node(function).meaning->role;
  const std::vector<Index>& given = node(arguments).children;
  const std::size_t least = role == PickleRole::tensor_v1 ? 4 : role == PickleRole::tensor_v2 ? 6 : 7;
  if (given.size() < least || given.size() > least + 1) {
    corrupt(fmt::format("a tensor has {} arguments", given.size()));
  }
  const Index storage = given[0];
  expect(storage, PickleKind::storage, "the memory of a tensor");
  const std::int64_t offset = expect(given[1], PickleKind::integer, "the offset of a tensor").integer;
  if (offset < 0 || offset > kMostElements) corrupt(fmt::format("a tensor begins at the invalid offset {}", offset));
  check_shape(given[2], "the shape of a tensor");
  check_shape(given[3], "the strides of a tensor");
  if (node(given[2]).children.size() != node(given[3]).children.size()) {
    corrupt("a tensor has different numbers of dimensions and strides");
  }
  PickleNode tensor{.kind = PickleKind::tensor, .integer = offset, .children = {storage, given[2], given[3]}};
  if (role != PickleRole::tensor_v1) tensor.is_true = expect(given[4], PickleKind::boolean, "requires_grad").is_true;
  if (role == PickleRole::tensor_v3) {
    const PickleNode& type = expect(given[6], PickleKind::name, "the type of a tensor");
    const bool is_constant = type.meaning->role == PickleRole::constant;
    if (type.meaning->role == PickleRole::unknown || (is_constant && type.meaning->detail.empty())) {
      return opaque(type.text, arguments);
    }
    if (!is_constant) corrupt(fmt::format("{} is not a tensor type", type.text));
    tensor.children.push_back(given[6]);
  }
  if (role != PickleRole::tensor_v1 && given.size() > least && !take_metadata(tensor, given[least])) {
    return opaque(node(function).text, arguments);
  }
  return add(std::move(tensor));
}

// (tensor, requires_grad, hooks[, state])
PickleMachine::Index PickleMachine::parameter(std::span<const Index> given) {
  if (given.size() != 3 && given.size() != 4) corrupt(fmt::format("a parameter has {} arguments", given.size()));
  if (node(given[0]).kind == PickleKind::dict) return given[0];  // parts()
  PickleNode parameter = expect(given[0], PickleKind::tensor, "a parameter");
  parameter.is_true = expect(given[1], PickleKind::boolean, "requires_grad").is_true;
  parameter.is_parameter = true;
  return add(std::move(parameter));
}

// (function, class, its arguments, attributes): a tensor to which Python has added attributes, which are left out, or
// one of a class of its own.
PickleMachine::Index PickleMachine::with_attributes(Index function, Index arguments) {
  const std::vector<Index>& given = node(arguments).children;
  if (given.size() != 4) corrupt(fmt::format("a tensor with attributes has {} arguments", given.size()));
  const PickleNode& maker = expect(given[0], PickleKind::name, "the constructor of a tensor");
  const PickleNode& type = expect(given[1], PickleKind::name, "the class of a tensor");
  expect(given[2], PickleKind::tuple, "the argument list of a tensor");
  const PickleRole role = type.meaning->role;
  if (role != PickleRole::tensor_class && role != PickleRole::unknown) {
    corrupt(fmt::format("{} is not a tensor class", type.text));
  }
  switch (maker.meaning->role) {
    case PickleRole::tensor_v1:
    case PickleRole::tensor_v2:
    case PickleRole::tensor_v3:
    case PickleRole::parameter:
    case PickleRole::sparse_tensor:
    case PickleRole::quantised_tensor:
    case PickleRole::nested_tensor:
    case PickleRole::meta_tensor: return call(given[0], given[2]);
    case PickleRole::wrapper_tensor:  // whose elements are in its attributes
    case PickleRole::unknown: return opaque(role == PickleRole::unknown ? type.text : node(function).text, arguments);
    default: corrupt(fmt::format("{} does not construct a tensor", maker.text));
  }
}

// (tensor, type, device, requires_grad)
PickleMachine::Index PickleMachine::tensor_of_device(Index function, Index arguments) {
  const std::vector<Index>& given = node(arguments).children;
  if (given.size() != 4) corrupt(fmt::format("a tensor of a device has {} arguments", given.size()));
  PickleNode tensor = expect(given[0], PickleKind::tensor, "a tensor of a device");
  const PickleNode& type = expect(given[1], PickleKind::name, "the type of a tensor");
  const Index own_type = tensor.children.size() > 3 ? tensor.children[3] : node(tensor.children[0]).children[0];
  if (type.meaning->detail != node(own_type).meaning->detail) return opaque(node(function).text, arguments);
  tensor.is_true = expect(given[3], PickleKind::boolean, "requires_grad").is_true;
  return add(std::move(tensor));
}

// (layout, (indices, values, shape[, is_coalesced])), or two tensors of indices.
PickleMachine::Index PickleMachine::sparse_tensor(Index function, Index arguments) {
  const std::vector<Index>& given = node(arguments).children;
  if (given.size() != 2) corrupt(fmt::format("a sparse tensor has {} arguments", given.size()));
  const PickleNode& layout = expect(given[0], PickleKind::object, "the layout of a sparse tensor");
  const std::vector<Index>& data = expect(given[1], PickleKind::tuple, "the data of a sparse tensor").children;
  const std::vector<Index>& named = node(layout.children[0]).children;
  if (named.size() != 1 || data.size() < 3 || data.size() > 4) {
    corrupt(fmt::format("a sparse tensor consists of {} values", data.size()));
  }
  const std::string_view name = expect(named[0], PickleKind::text, "the layout of a sparse tensor").text;
  if (name == "torch.sparse_coo") {
    return parts({{"layout", named[0]},
                  {"indices", data[0]},
                  {"values", data[1]},
                  {"size", data[2]},
                  {"is_coalesced", data.size() == 4 ? data[3] : kNoNode}});
  }
  for (const IndexNames& each : kIndexNames) {
    if (each.layout != name || data.size() != 4) continue;
    return parts({{"layout", named[0]},
                  {each.compressed, data[0]},
                  {each.plain, data[1]},
                  {"values", data[2]},
                  {"size", data[3]}});
  }
  return opaque(node(function).text, arguments);
}

// (storage, offset, shape, strides, (scheme, scale, zero point[, axis]), requires_grad, hooks)
PickleMachine::Index PickleMachine::quantised_tensor(std::span<const Index> given) {
  if (given.size() != 7) corrupt(fmt::format("a quantised tensor has {} arguments", given.size()));
  const PickleNode& storage = expect(given[0], PickleKind::storage, "the memory of a tensor");
  const std::string_view type = quantised_type(node(storage.children[0]).text);
  if (type.empty()) corrupt(fmt::format("a quantised tensor has elements of {}", node(storage.children[0]).text));
  const std::vector<Index>& scheme = expect(given[4], PickleKind::tuple, "the quantiser of a tensor").children;
  if (scheme.size() != 3 && scheme.size() != 4)
    corrupt(fmt::format("the quantiser of a tensor has {} values", scheme.size()));
  expect(given[1], PickleKind::integer, "the offset of a tensor");
  Index values = given[0];  // packed: bytes with several elements each
  if (!is_packed(type)) {
    const Index four[] = {given[0], given[1], given[2], given[3]};
    const Index v1 = add({.kind = PickleKind::name, .meaning = &find_pickle_class("torch._utils", "_rebuild_tensor")});
    check_held(std::size(four));
    values = plain_tensor(v1, add({.kind = PickleKind::tuple, .children = {std::begin(four), std::end(four)}}));
  }
  return parts({{"type", text_value(type)},
                {"scheme", scheme[0]},
                {"values", values},
                {"size", is_packed(type) ? given[2] : kNoNode},
                {"scale", scheme[1]},
                {"zero_point", scheme[2]},
                {"axis", scheme.size() == 4 ? scheme[3] : kNoNode}});
}

// An object of the class torch.Tensor, or of one below it: of a tensor, or to be given its elements by build_tensor().
PickleMachine::Index PickleMachine::tensor_object(Index name, Index arguments) {
  const std::vector<Index>& given = node(arguments).children;
  const bool has_tensor = !given.empty() && node(given[0]).kind == PickleKind::tensor;
  if (!has_tensor) {
    const Index pending = opaque_result(name, arguments);
    tree_.nodes_[pending].meaning = node(name).meaning;
    return pending;
  }
  PickleNode tensor = node(given[0]);
  tensor.is_parameter = node(name).text.ends_with(".Parameter");
  if (tensor.is_parameter) {
    tensor.is_true = given.size() < 2 || node(given[1]).kind != PickleKind::boolean || node(given[1]).is_true;
  }
  return add(std::move(tensor));
}

// (storage, offset, shape, strides) of an object of tensor_object(), as the first versions of PyTorch wrote it;
// (requires_grad, ...) of a tensor. Other states of tensors are attributes, which are left out.
bool PickleMachine::build_tensor(PickleNode& target, Index state) {
  const std::vector<Index>& given = node(state).children;
  const bool is_tuple = node(state).kind == PickleKind::tuple;
  if (target.kind == PickleKind::tensor) {
    if (is_tuple && given.size() == 3 && node(given[0]).kind == PickleKind::boolean) {
      target.is_true = node(given[0]).is_true;
    }
    return true;
  }
  const bool is_pending = target.kind == PickleKind::opaque && target.meaning != nullptr;
  if (!is_pending || !is_tuple || given.size() != 4 || node(given[0]).kind != PickleKind::storage) return false;
  const Index v1 = add({.kind = PickleKind::name, .meaning = &find_pickle_class("torch._utils", "_rebuild_tensor")});
  target = node(plain_tensor(v1, state));
  return true;
}

}  // namespace lockstep::internal
