// A pipe that programs which are started do not inherit. make_pipe() does not block; it is thread-safe.
#pragma once

#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

struct Pipe {
  UniqueFd reader, writer;
};

enum class PipeMode { blocking, non_blocking };  // of both ends

// `purpose` is for the error, "a rank's output". Error{internal}: too many files are open.
Pipe make_pipe(const char* purpose, PipeMode mode = PipeMode::blocking);

}  // namespace lockstep::internal
