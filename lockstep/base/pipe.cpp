#include "lockstep/base/pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::internal {

Pipe make_pipe(const char* purpose, PipeMode mode) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | (mode == PipeMode::non_blocking ? O_NONBLOCK : 0)) != 0) {
    throw system_error(std::string("making a pipe for ") + purpose, errno);
  }
  return {.reader = UniqueFd(ends[0]), .writer = UniqueFd(ends[1])};
}

}  // namespace lockstep::internal
