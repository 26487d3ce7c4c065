// The stack machine of read_pickle(): opcodes -> nodes. Nothing is shared by copying: what a pickle names twice stays
// one node, and what must be copied (the items of a set) is never more than the pickle has bytes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
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
  // A value that never changes is one node, however often it comes.
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
  Index storage_of(Index persistent_id);
  Index call(Index function, Index arguments);
  Index call_tensor(PickleRole role, std::span<const Index> arguments);
  Index call_parameter(std::span<const Index> arguments);
  Index call_with_attributes(std::span<const Index> arguments);
  Index call_dict(std::span<const Index> arguments);
  void refuse_lazy(Index metadata);
  Index call_set(std::span<const Index> arguments);
  Index call_encode(std::span<const Index> arguments);
  Index new_object(Index name, Index arguments);
  void build(Index object, Index state);
  void check_shape(Index index, std::string_view what);

  const PickleNode& node(Index index) const { return tree_.nodes_[index]; }
  const PickleNode& expect(Index index, PickleKind kind, std::string_view what);
  void check_copy(std::size_t items);
  // Items that values hold take memory, also if all of them are one.
  void check_held(std::size_t items);
  // No cycles, not too deep, not too large if everything that is shared were written out.
  void check_graph();
  [[noreturn]] void refuse(ErrorKind kind, const std::string& why) const;
  [[noreturn]] void corrupt(const std::string& why) const { refuse(ErrorKind::corrupt_data, why); }

  PickleTree& tree_;
  PickleOp op_ = {};
  std::vector<Index> stack_ = {};
  std::vector<std::size_t> marks_ = {};  // heights of the stack
  std::vector<Index> memo_ = {};
  std::array<Index, 4> constants_ = {kNoNode, kNoNode, kNoNode, kNoNode};
  std::size_t copied_ = 0;
  std::size_t held_ = 0;
};

}  // namespace lockstep::internal
