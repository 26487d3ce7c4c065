// Checks whether all ranks have the same text, one fact a line. Collective and blocking; errors as of ProcessGroup's
// calls.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "lockstep/comm/group/process_group.h"

namespace lockstep {

// The first difference between the text of a rank and that of rank 0.
struct Difference {
  int rank = 0;          // the lowest that differs
  std::size_t line = 0;  // counted from 0
  std::string on_rank_0;
  std::string on_rank;  // "nothing" where a text has ended
};

// The same on all ranks; nullopt if all texts are equal, which takes two exchanges of 8 bytes.
std::optional<Difference> first_difference(const ProcessGroup& group, const std::string& mine);

}  // namespace lockstep
