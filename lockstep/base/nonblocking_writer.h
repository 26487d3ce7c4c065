// A NonblockingWriter writes to a descriptor that others use too. It never waits, and does not change the flags that
// the others see: where the system allows it, it opens the file once more, non-blocking. A reader that has gone and a
// limit on file sizes are error codes, not signals. Not thread-safe. Costs one open() to make.
#pragma once

#include <sys/types.h>

#include <string_view>

#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

class NonblockingWriter {
 public:
  explicit NonblockingWriter(int fd);  // borrowed

  // How many bytes were taken, which may be fewer; -1 with errno, EAGAIN if none can be taken now. Up to PIPE_BUF bytes
  // enter a pipe in one piece.
  ssize_t write(std::string_view bytes) noexcept;

 private:
  enum class Kind { file, socket, stream };

  int fd_;
  Kind kind_ = Kind::stream;
  UniqueFd own_;  // the same stream, opened without blocking
};

}  // namespace lockstep::internal
