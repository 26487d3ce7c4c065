#include "lockstep/base/line_buffering.h"

#include <stdio_ext.h>
#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <cstdio>

namespace lockstep::internal {
namespace {

// libc makes a buffer with the first output, as large as the file's blocks.
bool has_default_buffer() {
  const std::size_t bytes = ::__fbufsize(stdout);
  struct stat status {};
  return bytes == 0 || bytes == BUFSIZ ||
         (::fstat(::fileno(stdout), &status) == 0 && bytes == static_cast<std::size_t>(status.st_blksize));
}

}  // namespace

void buffer_output_by_line() noexcept {
  static std::atomic<bool> is_done{false};
  if (is_done.exchange(true) || !has_default_buffer()) return;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
}

}  // namespace lockstep::internal
