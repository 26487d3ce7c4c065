#include "lockstep/formats/pickle_machine.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/formats/pickle_reader.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kSmallCopies = 4096;

}  // namespace

std::unique_ptr<const PickleTree> read_pickle(Bytes bytes, std::string origin) {
  if (bytes.size() > PickleLimits::kBytes) {
    throw Error(ErrorKind::invalid_argument, fmt::format("{}: the pickle has {} bytes; the limit is {}", origin,
                                                         bytes.size(), PickleLimits::kBytes));
  }
  auto tree = std::make_unique<PickleTree>(std::move(bytes), std::move(origin));
  PickleMachine(*tree).run();
  return tree;
}

void PickleMachine::refuse(ErrorKind kind, const std::string& why) const {
  throw Error(kind, fmt::format("{}: byte {} of the pickle: {}", tree_.origin_, op_.at, why));
}

void PickleMachine::run() {
  const ByteView bytes = tree_.bytes_;
  for (std::size_t at = 0;; at = op_.next) {
    if (!decode_pickle_op(bytes, at, tree_.origin_, op_)) {
      op_.at = at;
      corrupt(fmt::format("the pickle is truncated: it has {} bytes", bytes.size()));
    }
    if (op_.code == PickleCode::stop) break;
    if (!step_constant() && !step_text() && !step_container() && !step_memo() && !step_call()) {
      corrupt(fmt::format("unsupported pickle opcode 0x{:02x}", static_cast<std::uint8_t>(op_.code)));
    }
  }
  if (stack_.size() != 1 || !marks_.empty()) {
    corrupt(fmt::format("it ends with {} values, not one", stack_.size() + marks_.size()));
  }
  if (op_.next != bytes.size()) corrupt(fmt::format("{} more bytes follow its end", bytes.size() - op_.next));
  tree_.root_ = pop();
  check_graph();
  require_content();
}

bool PickleMachine::step_constant() {
  switch (op_.code) {
    case PickleCode::proto:
      if (op_.at != 0) corrupt("the protocol appears twice");
      return true;
    case PickleCode::frame:
      if (op_.number > tree_.bytes_.size() - op_.next)
        corrupt(fmt::format("a frame of {} bytes extends beyond the pickle", op_.number));
      return true;
    case PickleCode::none: push_constant(0, {.kind = PickleKind::none}); return true;
    case PickleCode::new_false: push_constant(1, {.kind = PickleKind::boolean}); return true;
    case PickleCode::new_true: push_constant(2, {.kind = PickleKind::boolean, .is_true = true}); return true;
    case PickleCode::bin_int:
    case PickleCode::bin_int1:
    case PickleCode::bin_int2:
    case PickleCode::long1:
    case PickleCode::long4:
      if (!op_.text.empty()) {
        push({.kind = PickleKind::large_integer, .text = op_.text});
        return true;
      }
      push({.kind = PickleKind::integer, .integer = static_cast<std::int64_t>(op_.number)});
      return true;
    case PickleCode::bin_float:
      push({.kind = PickleKind::number, .integer = static_cast<std::int64_t>(op_.number)});
      return true;
    default: return false;
  }
}

bool PickleMachine::step_text() {
  switch (op_.code) {
    case PickleCode::bin_unicode:
    case PickleCode::short_bin_unicode:
    case PickleCode::bin_unicode8: push_text(PickleKind::text, op_.text); return true;
    case PickleCode::bin_string:  // text of Python 2
    case PickleCode::short_bin_string:
      push_text(is_utf8(op_.text) ? PickleKind::text : PickleKind::bytes, op_.text);
      return true;
    case PickleCode::bin_bytes:
    case PickleCode::short_bin_bytes:
    case PickleCode::bin_bytes8:
    case PickleCode::bytearray8: push_text(PickleKind::bytes, op_.text); return true;
    default: return false;
  }
}

bool PickleMachine::step_container() {
  switch (op_.code) {
    case PickleCode::mark:
      // Each that is open becomes a value within the one before.
      if (marks_.size() >= 2 * PickleLimits::kDepth)
        corrupt(fmt::format("{} marks are open at the same time", marks_.size()));
      marks_.push_back(stack_.size());
      return true;
    case PickleCode::empty_list: push({.kind = PickleKind::list}); return true;
    case PickleCode::empty_tuple: push_constant(3, {.kind = PickleKind::tuple}); return true;
    case PickleCode::empty_dict: push({.kind = PickleKind::dict}); return true;
    case PickleCode::empty_set: push({.kind = PickleKind::set}); return true;
    case PickleCode::tuple1: push_tuple(1); return true;
    case PickleCode::tuple2: push_tuple(2); return true;
    case PickleCode::tuple3: push_tuple(3); return true;
    case PickleCode::tuple: push({.kind = PickleKind::tuple, .children = pop_to_mark()}); return true;
    case PickleCode::frozen_set: push({.kind = PickleKind::set, .children = pop_to_mark()}); return true;
    case PickleCode::append: {
      const Index item = pop();
      append({&item, 1});
      return true;
    }
    case PickleCode::appends:
    case PickleCode::add_items: append(pop_to_mark()); return true;
    case PickleCode::set_item: {
      Index pair[2] = {};
      pair[1] = pop();
      pair[0] = pop();
      set_items(pair);
      return true;
    }
    case PickleCode::set_items: set_items(pop_to_mark()); return true;
    case PickleCode::pop:
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();
      } else {
        pop();
      }
      return true;
    case PickleCode::pop_mark: pop_to_mark(); return true;
    default: return false;
  }
}

bool PickleMachine::step_memo() {
  switch (op_.code) {
    case PickleCode::bin_put:
    case PickleCode::long_bin_put: put(op_.number); return true;
    case PickleCode::memoize: put(memo_.size()); return true;
    case PickleCode::bin_get:
    case PickleCode::long_bin_get: get(op_.number); return true;
    default: return false;
  }
}

bool PickleMachine::step_call() {
  switch (op_.code) {
    case PickleCode::global: push_name(op_.text, op_.name); return true;
    case PickleCode::stack_global: {
      const Index name = pop();
      const Index module = pop();
      push_name(expect(module, PickleKind::text, "a module").text, expect(name, PickleKind::text, "a name").text);
      return true;
    }
    case PickleCode::reduce:
    case PickleCode::new_obj: {
      const Index arguments = pop();
      const Index function = pop();
      push_index(op_.code == PickleCode::reduce ? call(function, arguments) : new_object(function, arguments));
      return true;
    }
    case PickleCode::new_obj_ex: {
      pop();  // arguments by name, of a class that is not known
      const Index arguments = pop();
      push_index(opaque_result(pop(), arguments));
      return true;
    }
    case PickleCode::build: {
      const Index state = pop();
      const Index object = pop();
      build(object, state);
      push_index(object);
      return true;
    }
    case PickleCode::bin_persid: push_index(persistent(pop())); return true;
    default: return false;
  }
}

PickleMachine::Index PickleMachine::add(PickleNode node) {
  if (tree_.nodes_.size() >= PickleLimits::kValues) {
    refuse(ErrorKind::invalid_argument, fmt::format("it has more than {} values", PickleLimits::kValues));
  }
  tree_.nodes_.push_back(std::move(node));
  return static_cast<Index>(tree_.nodes_.size() - 1);
}

void PickleMachine::push_index(Index index) {
  if (stack_.size() >= PickleLimits::kValues) {
    refuse(ErrorKind::invalid_argument, fmt::format("its stack has more than {} values", stack_.size()));
  }
  stack_.push_back(index);
}

void PickleMachine::push_constant(std::size_t which, PickleNode node) {
  if (constants_.at(which) == kNoNode) constants_.at(which) = add(std::move(node));
  push_index(constants_.at(which));
}

PickleMachine::Index PickleMachine::pop() {
  const std::size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() <= floor) corrupt("the opcode needs a value that the stack does not hold");
  const Index top = stack_.back();
  stack_.pop_back();
  return top;
}

std::vector<PickleMachine::Index> PickleMachine::pop_to_mark() {
  if (marks_.empty()) corrupt("the opcode needs a mark that the stack does not hold");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<Index> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  check_held(items.size());
  return items;
}

void PickleMachine::push_text(PickleKind kind, std::string_view text) {
  if (kind != PickleKind::text || is_utf8(text)) return push({.kind = kind, .text = text});
  std::string replaced;
  if (!replace_surrogates(text, replaced)) corrupt("a str is not UTF-8");
  check_copy(text.size());
  push({.kind = kind, .text = tree_.texts_.emplace_back(std::move(replaced))});
}

void PickleMachine::push_tuple(std::size_t items) {
  std::vector<Index> children(items);
  check_held(items);
  for (std::size_t i = items; i > 0; --i) children[i - 1] = pop();
  push({.kind = PickleKind::tuple, .children = std::move(children)});
}

void PickleMachine::put(std::uint64_t slot) {
  const Index top = pop();
  push_index(top);
  if (slot > op_.at) corrupt(fmt::format("memo {} is out of range", slot));
  if (slot >= memo_.size()) memo_.resize(slot + 1, kNoNode);
  memo_[slot] = top;
}

void PickleMachine::get(std::uint64_t slot) {
  if (slot >= memo_.size() || memo_[slot] == kNoNode) corrupt(fmt::format("memo {} is empty", slot));
  push_index(memo_[slot]);
}

void PickleMachine::append(std::span<const Index> items) {
  const Index target = pop();
  push_index(target);
  PickleNode& list = tree_.nodes_[target];
  const PickleKind wanted = op_.code == PickleCode::add_items ? PickleKind::set : PickleKind::list;
  if (list.kind == PickleKind::opaque) return add_to_opaque(target, wanted, items);
  if (list.kind != wanted)
    corrupt(fmt::format("items are added to {}, not to {}", to_string(list.kind), to_string(wanted)));
  check_held(items.size());
  list.children.insert(list.children.end(), items.begin(), items.end());
}

void PickleMachine::set_items(std::span<const Index> items) {
  const Index target = pop();
  push_index(target);
  PickleNode& dict = tree_.nodes_[target];
  if (dict.kind == PickleKind::opaque && items.size() % 2 == 0) return add_to_opaque(target, PickleKind::dict, items);
  if (dict.kind != PickleKind::dict) corrupt(fmt::format("items are set in {}, not in a dict", to_string(dict.kind)));
  if (items.size() % 2 != 0) corrupt("a key has no value");
  for (std::size_t i = 0; i < items.size(); i += 2) {
    const PickleKind key = node(items[i]).kind;
    if (key == PickleKind::list || key == PickleKind::dict || key == PickleKind::set) {
      corrupt(fmt::format("the key of a dict is {}", to_string(key)));
    }
  }
  check_held(items.size());
  dict.children.insert(dict.children.end(), items.begin(), items.end());
}

const PickleNode& PickleMachine::expect(Index index, PickleKind kind, std::string_view what) {
  const PickleNode& found = node(index);
  if (found.kind == kind) return found;
  if (found.kind != PickleKind::opaque) {
    corrupt(fmt::format("{} is {}, not {}", what, to_string(found.kind), to_string(kind)));
  }
  refuse(ErrorKind::invalid_argument, fmt::format("{} comes from {}, which Lockstep does not read", what, found.text));
}

void PickleMachine::check_copy(std::size_t items) {
  copied_ += items;
  if (copied_ > tree_.bytes_.size() + kSmallCopies) corrupt("the same items are copied too often");
}

void PickleMachine::check_held(std::size_t items) {
  held_ += items;
  if (held_ > PickleLimits::kExpandedValues) {
    corrupt(fmt::format("its containers hold more than {} values", PickleLimits::kExpandedValues));
  }
}

// Values are visited once each, children before their parents.
void PickleMachine::check_graph() {
  struct Visit {
    Index index;
    std::size_t next_child = 0;
    std::uint16_t height = 0;  // of what lies below
  };
  constexpr std::uint16_t kUnseen = 0;
  constexpr std::uint16_t kOpen = 0xffff;
  std::vector<std::uint16_t> heights(tree_.nodes_.size(), kUnseen);
  std::vector<std::uint64_t> expanded(tree_.nodes_.size(), 1);
  std::vector<Visit> path = {{tree_.root_}};
  heights[tree_.root_] = kOpen;
  while (!path.empty()) {
    Visit& visit = path.back();
    const PickleNode& parent = node(visit.index);
    const std::size_t place = visit.next_child;
    const Index child = place < parent.children.size()    ? parent.children[place]
                        : place == parent.children.size() ? parent.state
                                                          : kNoNode;
    if (path.size() + visit.height >= PickleLimits::kDepth) {
      corrupt(fmt::format("values are nested deeper than {}", PickleLimits::kDepth));
    }
    if (child == kNoNode) {
      heights[visit.index] = static_cast<std::uint16_t>(visit.height + 1);
      path.pop_back();
    } else if (heights[child] == kUnseen) {
      heights[child] = kOpen;
      path.push_back({child});
    } else if (heights[child] == kOpen) {
      PickleNode& holder = tree_.nodes_[visit.index];
      (place < holder.children.size() ? holder.children[place] : holder.state) = itself();
      heights.resize(tree_.nodes_.size(), kUnseen);
      expanded.resize(tree_.nodes_.size(), 1);
    } else {
      visit.height = std::max(visit.height, heights[child]);
      expanded[visit.index] += expanded[child];
      if (expanded[visit.index] > PickleLimits::kExpandedValues) {
        corrupt(fmt::format("shared values would expand to more than {}", PickleLimits::kExpandedValues));
      }
      ++visit.next_child;
    }
  }
}

}  // namespace lockstep::internal
