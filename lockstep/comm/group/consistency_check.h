// Whether all ranks have come with the same text, one fact a line. Collective and blocking; errors as of ProcessGroup's
// calls.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "lockstep/comm/group/process_group.h"

namespace lockstep {

// Where the text of some rank differs from rank 0's for the first time.
struct Difference {
  int rank = 0;          // the lowest that differs
  std::size_t line = 0;  // counted from 0
  std::string on_rank_0;
  std::string on_rank;  // "nothing" where a text has ended
};

// The same on all ranks; nothing if all texts are equal, which two exchanges of 8 bytes show.
std::optional<Difference> first_difference(const ProcessGroup& group, const std::string& mine);

}  // namespace lockstep
