// NonblockingWriter writes to a descriptor that it shares with others, without ever waiting and without changing how the
// others see it: where the system allows it, through an open file of its own, which does not block. A peer that has
// gone, and a limit on file sizes, are error codes and no signals. Not thread-safe. As cheap to make as one open():
// nothing has to be kept.
#pragma once

#include <sys/types.h>

#include <string_view>

#include "lockstep/base/unique_fd.h"

namespace lockstep {

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

}  // namespace lockstep
