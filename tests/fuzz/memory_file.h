// A file in memory, of which each input takes the place, for parsers that read from a descriptor.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::fuzz {

class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (!fd_) throw system_error("memfd_create", errno);
  }
  // Without a byte of the input before. Its pages stay, so that none is made for each input.
  internal::OpenFile open(ByteView bytes) {
    const bool is_written = ::pwrite(fd_.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
    const bool is_cut = bytes.size() >= size_ || ::ftruncate(fd_.get(), static_cast<off_t>(bytes.size())) == 0;
    if (!is_written || !is_cut) throw system_error("memory file", errno);
    size_ = bytes.size();
    return {internal::UniqueFd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)), bytes.size()};
  }

 private:
  internal::UniqueFd fd_;
  std::size_t size_ = 0;
};

}  // namespace lockstep::fuzz
