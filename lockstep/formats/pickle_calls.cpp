// The part of PickleMachine that stands for calls: what each name on the list makes of its arguments.
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/formats/pickle_machine.h"

namespace lockstep::internal {
namespace {

// Latin-1 text as UTF-8 holds it -> the bytes it stands for; false if a character is not Latin-1.
bool latin1_bytes(std::string_view text, std::string& out) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto first = static_cast<std::uint8_t>(text[i]);
    if (first < 0x80) {
      out.push_back(text[i]);
      continue;
    }
    if (first > 0xc3) return false;
    out.push_back(static_cast<char>((first & 3) << 6 | (text[++i] & 0x3f)));
  }
  return true;
}

}  // namespace

// ("storage", type, key, device, elements); the legacy format adds what a view of a storage was.
PickleMachine::Index PickleMachine::storage_of(Index persistent_id) {
  const std::vector<Index>& parts = expect(persistent_id, PickleKind::tuple, "a persistent id").children;
  if ((parts.size() != 5 && parts.size() != 6) || expect(parts[0], PickleKind::text, "its kind").text != "storage") {
    corrupt("a persistent id is not that of a storage");
  }
  const PickleNode& type = expect(parts[1], PickleKind::name, "the type of a storage");
  if (type.meaning->role != PickleRole::storage_type) corrupt(fmt::format("{} is no type of storages", type.text));
  if (parts.size() == 6 && node(parts[5]).kind != PickleKind::none) {
    refuse(
        ErrorKind::invalid_argument,
        "a storage is a view of another one, as PyTorch before 0.4 wrote them; save the file again with a newer one");
  }
  const std::int64_t elements = expect(parts[4], PickleKind::integer, "the size of a storage").integer;
  constexpr std::int64_t kMostElements = std::int64_t{1} << 56;
  if (elements < 0 || elements > kMostElements) corrupt(fmt::format("a storage has {} elements", elements));
  expect(parts[3], PickleKind::text, "the device of a storage");
  return add({.kind = PickleKind::storage,
              .integer = elements,
              .text = expect(parts[2], PickleKind::text, "the key of a storage").text,
              .children = {parts[1], parts[3]}});
}

PickleMachine::Index PickleMachine::call(Index function, Index arguments) {
  const PickleNode& name = expect(function, PickleKind::name, "what is called");
  const std::vector<Index>& given = expect(arguments, PickleKind::tuple, "what it is called with").children;
  const auto need = [&](std::size_t count) {
    if (given.size() != count) corrupt(fmt::format("{} is called with {} arguments", name.text, given.size()));
  };
  switch (name.meaning->role) {
    case PickleRole::object: return new_object(function, arguments);
    case PickleRole::ordered_dict: return call_dict(given);
    case PickleRole::default_dict:
      if (given.size() > 1) corrupt("a defaultdict is called with more than its factory");
      return add({.kind = PickleKind::dict});
    case PickleRole::size:
      need(1);
      check_shape(given[0], "torch.Size");
      return given[0];
    case PickleRole::set: return call_set(given);
    case PickleRole::encode:
    case PickleRole::bytearray: return call_encode(given);
    case PickleRole::tensor_v1:
    case PickleRole::tensor_v2:
    case PickleRole::tensor_v3: return call_tensor(name.meaning->role, given);
    case PickleRole::tensor_with_attributes: return call_with_attributes(given);
    case PickleRole::parameter: return call_parameter(given);
    case PickleRole::typed_list:
      need(1);
      expect(given[0], PickleKind::list, "a typed list");
      return given[0];
    case PickleRole::typed_value:
      need(2);
      expect(given[1], PickleKind::text, "the type of a value");
      return given[0];
    case PickleRole::constant:
    case PickleRole::storage_type:
    case PickleRole::factory:
    case PickleRole::tensor_class:
    case PickleRole::unsupported: break;
  }
  refuse(ErrorKind::invalid_argument,
         fmt::format("{} is called; Lockstep reads it as a name only, and executes nothing from a file", name.text));
}

void PickleMachine::check_shape(Index index, std::string_view what) {
  const std::vector<Index>& sizes = expect(index, PickleKind::tuple, what).children;
  if (sizes.size() > PickleLimits::kDimensions) {
    corrupt(fmt::format("{} has {} dimensions, at most {} are read", what, sizes.size(), PickleLimits::kDimensions));
  }
  for (const Index each : sizes) {
    const std::int64_t size = expect(each, PickleKind::integer, what).integer;
    if (size < 0) corrupt(fmt::format("{} has a dimension of {}", what, size));
  }
}

// The metadata of a tensor, {"neg": True}: its elements mean something else than they are.
void PickleMachine::refuse_lazy(Index metadata) {
  if (node(metadata).kind == PickleKind::none) return;
  for (const Index each : expect(metadata, PickleKind::dict, "the metadata of a tensor").children) {
    if (node(each).kind != PickleKind::boolean || !node(each).is_true) continue;
    refuse(ErrorKind::invalid_argument,
           "a tensor that is negated or conjugated when it is used; save tensor.resolve_neg().resolve_conj() instead");
  }
}

// (storage, offset, shape, strides[, requires_grad, hooks[, type][, metadata]])
PickleMachine::Index PickleMachine::call_tensor(PickleRole role, std::span<const Index> arguments) {
  const std::size_t least = role == PickleRole::tensor_v1 ? 4 : role == PickleRole::tensor_v2 ? 6 : 7;
  if (arguments.size() < least || arguments.size() > least + 1) {
    corrupt(fmt::format("a tensor comes with {} arguments", arguments.size()));
  }
  const Index storage = arguments[0];
  expect(storage, PickleKind::storage, "the memory of a tensor");
  const std::int64_t offset = expect(arguments[1], PickleKind::integer, "the offset of a tensor").integer;
  if (offset < 0) corrupt(fmt::format("a tensor begins at element {}", offset));
  check_shape(arguments[2], "the shape of a tensor");
  check_shape(arguments[3], "the strides of a tensor");
  if (node(arguments[2]).children.size() != node(arguments[3]).children.size()) {
    corrupt("a tensor has more dimensions than strides, or less");
  }
  PickleNode tensor{.kind = PickleKind::tensor, .integer = offset, .children = {storage, arguments[2], arguments[3]}};
  if (role != PickleRole::tensor_v1) {
    tensor.is_true = expect(arguments[4], PickleKind::boolean, "requires_grad").is_true;
  }
  if (role != PickleRole::tensor_v1 && arguments.size() > least) refuse_lazy(arguments[least]);
  if (role == PickleRole::tensor_v3) {
    const PickleNode& type = expect(arguments[6], PickleKind::name, "the type of a tensor");
    if (type.meaning->role != PickleRole::constant || type.meaning->detail.empty()) {
      corrupt(fmt::format("{} is no type of tensors", type.text));
    }
    tensor.children.push_back(arguments[6]);
  }
  return add(std::move(tensor));
}

// (tensor, requires_grad, hooks[, state])
PickleMachine::Index PickleMachine::call_parameter(std::span<const Index> arguments) {
  if (arguments.size() != 3 && arguments.size() != 4) {
    corrupt(fmt::format("a parameter comes with {} arguments", arguments.size()));
  }
  PickleNode parameter = expect(arguments[0], PickleKind::tensor, "a parameter");
  parameter.is_true = expect(arguments[1], PickleKind::boolean, "requires_grad").is_true;
  parameter.is_parameter = true;
  return add(std::move(parameter));
}

// (function, class, its arguments, attributes): a tensor to which Python has added attributes, which are left out.
PickleMachine::Index PickleMachine::call_with_attributes(std::span<const Index> arguments) {
  if (arguments.size() != 4) corrupt(fmt::format("a tensor with attributes has {} arguments", arguments.size()));
  const PickleRole made_by = expect(arguments[0], PickleKind::name, "what makes a tensor").meaning->role;
  const PickleNode& type = expect(arguments[1], PickleKind::name, "the class of a tensor");
  const std::vector<Index>& given = expect(arguments[2], PickleKind::tuple, "what makes a tensor").children;
  if (type.meaning->role != PickleRole::tensor_class) {
    corrupt(fmt::format("{} is no class of tensors", type.text));
  }
  if (made_by == PickleRole::tensor_v2 || made_by == PickleRole::tensor_v3) return call_tensor(made_by, given);
  if (made_by == PickleRole::parameter) return call_parameter(given);
  corrupt(fmt::format("{} makes no tensor", node(arguments[0]).text));
}

// Nothing, or a list of pairs.
PickleMachine::Index PickleMachine::call_dict(std::span<const Index> arguments) {
  PickleNode dict{.kind = PickleKind::dict};
  if (arguments.size() > 1) corrupt(fmt::format("an OrderedDict is called with {} arguments", arguments.size()));
  if (arguments.size() == 1) {
    const std::vector<Index>& pairs = expect(arguments[0], PickleKind::list, "the items of an OrderedDict").children;
    check_copy(2 * pairs.size());
    for (const Index each : pairs) {
      const PickleNode& pair = node(each);
      const bool is_pair = pair.kind == PickleKind::list || pair.kind == PickleKind::tuple;
      if (!is_pair || pair.children.size() != 2) corrupt("an item of an OrderedDict is no pair");
      dict.children.insert(dict.children.end(), pair.children.begin(), pair.children.end());
    }
  }
  return add(std::move(dict));
}

PickleMachine::Index PickleMachine::call_set(std::span<const Index> arguments) {
  if (arguments.size() != 1) corrupt(fmt::format("a set is called with {} arguments", arguments.size()));
  const std::vector<Index>& items = expect(arguments[0], PickleKind::list, "what a set is made of").children;
  check_copy(items.size());
  return add({.kind = PickleKind::set, .children = items});
}

// (text, "latin1") -> bytes
PickleMachine::Index PickleMachine::call_encode(std::span<const Index> arguments) {
  if (arguments.empty()) return add({.kind = PickleKind::bytes});
  const PickleNode& given = node(arguments[0]);
  if (given.kind == PickleKind::bytes && arguments.size() == 1) return arguments[0];
  const bool has_encoding = arguments.size() == 2 && node(arguments[1]).kind == PickleKind::text;
  const std::string_view encoding = has_encoding ? node(arguments[1]).text : "";
  std::string bytes;
  if (given.kind != PickleKind::text || (encoding != "latin1" && encoding != "latin-1")) {
    corrupt("bytes are not given as text in Latin-1");
  }
  check_copy(given.text.size());
  if (!latin1_bytes(given.text, bytes)) corrupt("bytes are given as text that is not Latin-1");
  return add({.kind = PickleKind::bytes, .text = tree_.texts_.emplace_back(std::move(bytes))});
}

PickleMachine::Index PickleMachine::new_object(Index name, Index arguments) {
  const PickleNode& type = expect(name, PickleKind::name, "what is made");
  expect(arguments, PickleKind::tuple, "what an object is made of");
  if (type.meaning->role != PickleRole::object) {
    refuse(ErrorKind::invalid_argument,
           fmt::format("an object of {} is made; Lockstep reads no such object, and executes nothing from a file",
                       type.text));
  }
  return add({.kind = PickleKind::object, .text = type.text, .children = {arguments}});
}

// A state is kept for objects; what an OrderedDict has besides its items does not matter.
void PickleMachine::build(Index object, Index state) {
  PickleNode& target = tree_.nodes_[object];
  if (target.kind == PickleKind::dict) return;
  if (target.kind != PickleKind::object) corrupt(fmt::format("{} is given a state", to_string(target.kind)));
  if (target.state != kNoNode) corrupt(fmt::format("an object of {} is given a state twice", target.text));
  target.state = state;
}

}  // namespace lockstep::internal
