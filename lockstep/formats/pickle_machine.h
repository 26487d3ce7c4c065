// The stack machine of read_pickle(): opcodes -> nodes. Shared values are not copied: a value that a pickle refers to
// twice is one node, and necessary copies (the items of a set) never exceed the bytes of the pickle.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/formats/pickle_classes.h"
#include "lockstep/formats/pickle_opcodes.h"
#include "lockstep/formats/pickle_tree.h"

namespace lockstep::internal {

class PickleMachine {
 public:
  explicit PickleMachine(PickleTree& tree) : tree_(tree) {}
  // Reads the whole pickle; call once.
  void run();

 private:
  using Index = std::uint32_t;

  // Each returns false if the opcode is another's.
  bool step_constant();
  bool step_text();
  bool step_container();
  bool step_memo();
  bool step_call();

  Index add(PickleNode node);
  void push_index(Index index);
  void push(PickleNode node) { push_index(add(std::move(node))); }
  // A constant value is one node, however often it occurs.
  void push_constant(std::size_t which, PickleNode node);
  Index pop();
  std::vector<Index> pop_to_mark();
  void push_text(PickleKind kind, std::string_view text);
  void push_tuple(std::size_t items);
  void put(std::uint64_t slot);
  void get(std::uint64_t slot);
  void append(std::span<const Index> items);
  void set_items(std::span<const Index> items);
  void push_name(std::string_view module, std::string_view name);

  // Calls of names, none of which is executed. Defined in pickle_calls.cpp; each returns the result.
  Index call(Index function, Index arguments);
  Index call_known(Index function, Index arguments);
  Index call_dict(std::span<const Index> arguments);
  Index call_set(std::span<const Index> arguments);
  Index call_encode(Index function, Index arguments);
  Index new_object(Index name, Index arguments);
  void build(Index object, Index state);

  // Those that make tensors: pickle_tensors.cpp.
  Index persistent(Index id);
  Index call_tensor(Index function, Index arguments);
  Index plain_tensor(Index function, Index arguments);
  Index parameter(std::span<const Index> arguments);
  Index with_attributes(Index function, Index arguments);
  Index tensor_of_device(Index function, Index arguments);
  Index sparse_tensor(Index function, Index arguments);
  Index quantised_tensor(std::span<const Index> arguments);
  Index tensor_object(Index name, Index arguments);
  bool build_tensor(PickleNode& target, Index state);
  // Whether the metadata of a tensor is understood; then it is noted in the tensor.
  bool take_metadata(PickleNode& tensor, Index metadata) const;
  void check_shape(Index index, std::string_view what);
  // A dict of them, for a tensor that is not plain elements.
  Index parts(std::initializer_list<std::pair<std::string_view, Index>> parts);
  Index text_value(std::string_view literal) { return add({.kind = PickleKind::text, .text = literal}); }

  // What Lockstep does not know: pickle_opaque.cpp.
  Index opaque(std::string_view name, Index arguments) {
    return add({.kind = PickleKind::opaque, .text = name, .children = {arguments}});
  }
  Index opaque_result(Index function, Index arguments);
  // The first value in them that is opaque, also in a tuple; kNoNode if there is none.
  Index opaque_among(std::span<const Index> arguments) const;
  void add_to_opaque(Index target, PickleKind items_kind, std::span<const Index> items);
  void require_content() const;
  Index itself();

  const PickleNode& node(Index index) const { return tree_.nodes_[index]; }
  const PickleNode& expect(Index index, PickleKind kind, std::string_view what);
  void check_copy(std::size_t items);
  // Items in values take memory, even if they are the same.
  void check_held(std::size_t items);
  // Limits depth, and the size with all shared values expanded. Cycles are cut.
  void check_graph();
  [[noreturn]] void refuse(ErrorKind kind, const std::string& why) const;
  [[noreturn]] void corrupt(const std::string& why) const { refuse(ErrorKind::corrupt_data, why); }

  PickleTree& tree_;
  PickleOp op_ = {};
  std::vector<Index> stack_ = {};
  std::vector<std::size_t> marks_ = {};  // heights of the stack
  std::vector<Index> memo_ = {};
  std::array<Index, 4> constants_ = {kNoNode, kNoNode, kNoNode, kNoNode};
  Index itself_ = kNoNode;
  std::size_t copied_ = 0;
  std::size_t held_ = 0;
};

}  // namespace lockstep::internal
