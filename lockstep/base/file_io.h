// Whole reads and writes of files, through interruptions and short counts. They block on the disk.
// `doing` begins the text of an error: "writing the token file /x failed".
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

// A file that is open for reading, and its size.
struct OpenFile {
  UniqueFd fd;
  std::uint64_t bytes = 0;
};
// Never waits for a writer. Error{invalid_argument}: there is no such file, or it is not a regular one.
OpenFile open_regular_file(const std::string& path);
// The same for a name in a directory, which may not be a link. `path` is for messages.
OpenFile open_regular_file_in(int directory, const std::string& name, const std::string& path);

// Beyond a limit on file sizes (`ulimit -f`), which holds for memory files as well, both fail with EFBIG, and the
// process is not killed. The second returns 0 or errno.
void write_all(int fd, ByteView bytes, const std::string& doing);
int resize_file(int fd, std::uint64_t bytes) noexcept;

// Why memfd_create(2) has failed; where it is forbidden, with what to do.
Error memory_file_error(const std::string& doing, int saved_errno);

// Both read fewer bytes than asked for only at the end of the file. The first returns how many, or -1 with errno.
ssize_t read_at(int fd, std::uint64_t offset, MutableByteSpan out) noexcept;
Bytes read_at(int fd, std::uint64_t offset, std::size_t count, const std::string& doing);

}  // namespace lockstep::internal
