// The part of PickleMachine for calls: the result of each known name for its arguments.
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/formats/pickle_machine.h"

namespace lockstep::internal {
namespace {

// UTF-8 text -> its Latin-1 bytes; false if a character is not Latin-1.
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

PickleMachine::Index PickleMachine::call(Index function, Index arguments) {
  const PickleNode& called = node(function);
  if (called.kind != PickleKind::opaque) expect(function, PickleKind::name, "the callee of a call");
  const std::vector<Index>& given = expect(arguments, PickleKind::tuple, "the argument list of a call").children;
  if (called.kind == PickleKind::opaque || called.meaning->role == PickleRole::unknown) {
    return opaque_result(function, arguments);
  }
  const bool passes_on = called.meaning->role == PickleRole::object || called.meaning->role == PickleRole::default_dict;
  if (const Index unknown = opaque_among(given); unknown != kNoNode && !passes_on) {
    return opaque(node(unknown).text, arguments);
  }
  return call_known(function, arguments);
}

// What none of the arguments, nor a value in a tuple of them, is opaque of.
PickleMachine::Index PickleMachine::call_known(Index function, Index arguments) {
  const PickleNode& name = node(function);
  const std::vector<Index>& given = node(arguments).children;
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
    case PickleRole::bytearray: return call_encode(function, arguments);
    case PickleRole::typed_list:
      need(1);
      expect(given[0], PickleKind::list, "a typed list");
      return given[0];
    case PickleRole::typed_value:
      need(2);
      expect(given[1], PickleKind::text, "the type of a value");
      return given[0];
    case PickleRole::factory:
    case PickleRole::unknown: return opaque_result(function, arguments);
    case PickleRole::constant:
    case PickleRole::storage_type: break;
    default: return call_tensor(function, arguments);
  }
  refuse(ErrorKind::invalid_argument,
         fmt::format("{} is called, but Lockstep reads it only as a name: it executes nothing from a file", name.text));
}

// Nothing, a dict, or a list of pairs.
PickleMachine::Index PickleMachine::call_dict(std::span<const Index> arguments) {
  PickleNode dict{.kind = PickleKind::dict};
  if (arguments.size() > 1) corrupt(fmt::format("an OrderedDict is called with {} arguments", arguments.size()));
  if (arguments.size() == 1 && node(arguments[0]).kind == PickleKind::dict) {
    dict.children = node(arguments[0]).children;
    check_copy(dict.children.size());
  } else if (arguments.size() == 1) {
    const std::vector<Index>& pairs = expect(arguments[0], PickleKind::list, "the items of an OrderedDict").children;
    check_copy(2 * pairs.size());
    for (const Index each : pairs) {
      const PickleNode& pair = node(each);
      const bool is_pair = pair.kind == PickleKind::list || pair.kind == PickleKind::tuple;
      if (!is_pair || pair.children.size() != 2) corrupt("an item of an OrderedDict is not a pair");
      dict.children.insert(dict.children.end(), pair.children.begin(), pair.children.end());
    }
  }
  return add(std::move(dict));
}

PickleMachine::Index PickleMachine::call_set(std::span<const Index> arguments) {
  if (arguments.size() != 1) corrupt(fmt::format("a set is called with {} arguments", arguments.size()));
  const std::vector<Index>& items = expect(arguments[0], PickleKind::list, "the argument of a set").children;
  check_copy(items.size());
  return add({.kind = PickleKind::set, .children = items});
}

// (text, "latin1") -> bytes; results of other encodings are unknown.
PickleMachine::Index PickleMachine::call_encode(Index function, Index arguments) {
  const std::vector<Index>& given = node(arguments).children;
  if (given.empty()) return add({.kind = PickleKind::bytes});
  const PickleNode& text = node(given[0]);
  if (text.kind == PickleKind::bytes && given.size() == 1) return given[0];
  const bool has_encoding = given.size() == 2 && node(given[1]).kind == PickleKind::text;
  const std::string_view encoding = has_encoding ? node(given[1]).text : "";
  if (text.kind != PickleKind::text || (encoding != "latin1" && encoding != "latin-1")) {
    return opaque_result(function, arguments);
  }
  std::string bytes;
  check_copy(text.text.size());
  if (!latin1_bytes(text.text, bytes)) corrupt("bytes are given as text that is not Latin-1");
  return add({.kind = PickleKind::bytes, .text = tree_.texts_.emplace_back(std::move(bytes))});
}

PickleMachine::Index PickleMachine::new_object(Index name, Index arguments) {
  if (node(name).kind == PickleKind::opaque) return opaque_result(name, arguments);
  const PickleNode& type = expect(name, PickleKind::name, "the class of a new object");
  const std::vector<Index>& given = expect(arguments, PickleKind::tuple, "the argument list of a new object").children;
  switch (type.meaning->role) {
    case PickleRole::object: return add({.kind = PickleKind::object, .text = type.text, .children = {arguments}});
    case PickleRole::factory:
    case PickleRole::unknown: return opaque_result(name, arguments);
    case PickleRole::ordered_dict:
    case PickleRole::default_dict: return add({.kind = PickleKind::dict});
    case PickleRole::set: return add({.kind = PickleKind::set});
    case PickleRole::size: return call(name, arguments);
    case PickleRole::tensor_class:
      if (opaque_among(given) != kNoNode) return opaque_result(name, arguments);
      return tensor_object(name, arguments);
    default: break;
  }
  refuse(ErrorKind::invalid_argument,
         fmt::format("Lockstep does not read objects of {}: it executes nothing from a file", type.text));
}

// A state is kept for objects; other attributes of an OrderedDict do not matter.
void PickleMachine::build(Index object, Index state) {
  PickleNode& target = tree_.nodes_[object];
  if (target.kind == PickleKind::dict || build_tensor(target, state)) return;
  if (target.kind != PickleKind::object && target.kind != PickleKind::opaque)
    corrupt(fmt::format("{} cannot have a state", to_string(target.kind)));
  if (target.state != kNoNode) corrupt(fmt::format("an object of {} is given a state twice", target.text));
  target.state = state;
}

}  // namespace lockstep::internal
