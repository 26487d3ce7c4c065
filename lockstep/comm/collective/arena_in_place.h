// The in-place way of the ArenaEngine: all ranks' operands lie in the arena, and each rank reduces its slice of all of
// them, where they lie. Nothing blocks. One thread at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/collective/segment_cursor.h"
#include "lockstep/comm/collective/signature.h"
#include "lockstep/comm/transport/arena.h"

namespace lockstep::internal {

class InPlaceReduction {
 public:
  // Borrows the arena.
  explicit InPlaceReduction(const Arena& arena);

  // Tells the others in this rank's slot where its operands lie, unless that is not in the arena. Whether it did.
  bool offer(const Collective& collective, arena::Slot& slot) const;
  // Whether all ranks did. REQUIRES: all ranks have posted.
  bool is_offered_by_all(const Signature& signature) const;
  // Does this rank's share. Error{corrupt_data} naming the rank whose slot makes no sense. REQUIRES: the same, and
  // is_offered_by_all().
  void reduce(const Collective& collective, const Signature& signature);

 private:
  // Where a peer's operands lie, as its slot says.
  void list_segments(int peer, const Collective& collective, const Signature& signature);
  Error damaged(int peer, const Signature& signature, std::string_view posted) const;

  const Arena& arena_;
  // Scratch, one entry a rank.
  std::vector<std::byte*> outputs_;
  std::vector<const std::byte*> inputs_;
  std::vector<std::vector<Segment>> segments_;
  std::vector<SegmentCursor> cursors_;
};

}  // namespace lockstep::internal
