// Invalid data from other ranks ends the group: others may have received something else, and would wait.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/comm/group/process_group.h"

namespace lockstep::internal {

// Runs code that looks at what came from other ranks. Its Error{corrupt_data} passes, and ends the group: ranks that
// have not found it themselves get Error{aborted} that quotes it.
template <class Look>
decltype(auto) believed(const ProcessGroup& group, Look&& look) {
  try {
    return look();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::corrupt_data) group.abort(error.what());
    throw;
  }
}

}  // namespace lockstep::internal
