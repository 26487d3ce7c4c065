// The part of PickleMachine for names and unknown values: such a value keeps its name and arguments, so that the
// tensors beside it, and in it, can be read.
#include <algorithm>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/formats/pickle_machine.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"

namespace lockstep::internal {
namespace {

// Functions that only make an object of the class that they are given.
constexpr std::string_view kMakers[] = {"copyreg._reconstructor", "copy_reg._reconstructor", "copyreg.__newobj__",
                                        "copyreg.__newobj_ex__"};

}  // namespace

void PickleMachine::push_name(std::string_view module, std::string_view name) {
  std::string full = fmt::format("{}.{}", module, name);
  if (is_program(module, name)) {
    refuse(ErrorKind::invalid_argument,
           fmt::format("{} runs programs, so the file is refused: Lockstep executes nothing from a file, and no "
                       "checkpoint needs it. Save a state dict: tensors, numbers, strings, lists and dicts",
                       shown(full)));
  }
  if (!is_utf8(full)) corrupt("the name of a class is not UTF-8");
  check_copy(full.size());
  push({.kind = PickleKind::name,
        .meaning = &find_pickle_class(module, name),
        .text = tree_.texts_.emplace_back(std::move(full))});
}

PickleMachine::Index PickleMachine::opaque_result(Index function, Index arguments) {
  const bool has_name = node(function).kind == PickleKind::name || node(function).kind == PickleKind::opaque;
  if (!has_name) expect(function, PickleKind::name, "the class of a new object");
  const std::vector<Index>& given = expect(arguments, PickleKind::tuple, "the argument list of a new object").children;
  const std::string_view name = node(function).text;
  const bool is_of_class = !given.empty() && node(given[0]).kind == PickleKind::name;
  if (is_of_class && std::ranges::find(kMakers, name) != std::end(kMakers)) {
    return opaque(node(given[0]).text, arguments);
  }
  // A class within a class.
  const bool is_getattr = name == "builtins.getattr" || name == "__builtin__.getattr";
  if (is_getattr && is_of_class && given.size() == 2 && node(given[1]).kind == PickleKind::text) {
    std::string inner = fmt::format("{}.{}", node(given[0]).text, node(given[1]).text);
    check_copy(inner.size());
    return add({.kind = PickleKind::name,
                .meaning = &find_pickle_class("", ""),
                .text = tree_.texts_.emplace_back(std::move(inner))});
  }
  return opaque(name, arguments);
}

PickleMachine::Index PickleMachine::opaque_among(std::span<const Index> arguments) const {
  const auto is_opaque = [&](Index index) { return node(index).kind == PickleKind::opaque; };
  for (const Index each : arguments) {
    if (is_opaque(each)) return each;
    if (node(each).kind != PickleKind::tuple) continue;
    const std::vector<Index>& inner = node(each).children;
    const auto found = std::ranges::find_if(inner, is_opaque);
    if (found != inner.end()) return *found;
  }
  return kNoNode;
}

// The items of a class that is derived from list, set or dict.
void PickleMachine::add_to_opaque(Index target, PickleKind items_kind, std::span<const Index> items) {
  if (node(target).children.size() < 2) tree_.nodes_[target].children.push_back(add({.kind = items_kind}));
  PickleNode& holder = tree_.nodes_[node(target).children[1]];
  if (holder.kind != items_kind) {
    corrupt(fmt::format("items are added to {}, not to {}", to_string(holder.kind), to_string(items_kind)));
  }
  check_held(items.size());
  holder.children.insert(holder.children.end(), items.begin(), items.end());
}

// Replaces a value within itself.
PickleMachine::Index PickleMachine::itself() {
  if (itself_ == kNoNode) itself_ = opaque(kItself, add({.kind = PickleKind::tuple}));
  return itself_;
}

// A file with only one unknown value and no tensor has nothing to read.
void PickleMachine::require_content() const {
  const PickleNode& root = node(tree_.root_);
  const bool is_unknown =
      root.kind == PickleKind::opaque || (root.kind == PickleKind::name && root.meaning->role == PickleRole::unknown);
  const auto is_tensor = [](const PickleNode& each) {
    return each.kind == PickleKind::tensor || each.kind == PickleKind::storage;
  };
  if (!is_unknown || std::ranges::any_of(tree_.nodes_, is_tensor)) return;
  refuse(ErrorKind::invalid_argument,
         fmt::format("the file holds only {}, which Lockstep does not read: it executes nothing from a file. Save a "
                     "state dict: tensors, numbers, strings, lists and dicts",
                     shown(root.text)));
}

}  // namespace lockstep::internal
