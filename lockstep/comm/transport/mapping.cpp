#include "lockstep/comm/transport/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/private_fd.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace lockstep::internal {

Mapping Mapping::create(std::size_t bytes) {
  UniqueFd fd = PrivateFd::open([] { return ::memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (!fd) throw memory_file_error("making a memory file that ranks share failed", errno);
  if (const int error = resize_file(fd.get(), bytes); error != 0) {
    throw system_error("cannot size shared memory to " + std::to_string(bytes) + " bytes", error);
  }
  // Nobody may shrink the file while it is mapped: access after its end would be SIGBUS.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw system_error("cannot seal shared memory", errno);
  }
  return Mapping(std::move(fd), bytes);
}

Mapping Mapping::attach(UniqueFd fd, std::size_t bytes) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw system_error("fstat of shared memory failed", errno);
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw Error(ErrorKind::corrupt_data,
                "shared memory is not sealed: its creator could shrink it while others use it");
  }
  if (static_cast<std::size_t>(status.st_size) != bytes) {
    throw Error(ErrorKind::corrupt_data, "shared memory has " + std::to_string(status.st_size) + " bytes where " +
                                             std::to_string(bytes) + " were announced");
  }
  return Mapping(std::move(fd), bytes);
}

Mapping::Mapping(UniqueFd fd, std::size_t bytes) : fd_(std::move(fd)), size_(bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(), 0);
  if (address == MAP_FAILED) {
    throw system_error("cannot map " + std::to_string(bytes) + " bytes of shared memory (is `ulimit -v` set?)", errno);
  }
  data_ = static_cast<std::byte*>(address);
  // A forked child that wrote to gradients would corrupt its parent's: it gets no mapping at all.
  ::madvise(address, bytes, MADV_DONTFORK);
  ::madvise(address, bytes, MADV_DONTDUMP);
}

Mapping::Mapping(Mapping&& other) noexcept
    : fork_guard_(other.fork_guard_),
      fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_) {}

Mapping::~Mapping() {
  // In a forked child other memory may lie there.
  if (data_ != nullptr && fork_guard_.is_here()) ::munmap(data_, size_);
}

void Mapping::populate(std::byte* begin, std::size_t bytes) const {
  // Kernels before 5.14 do not know it.
  if (::madvise(begin, bytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL) return;
  throw system_error("cannot get " + std::to_string(bytes) + " bytes of shared memory", errno);
}

void Mapping::prefer_huge_pages(std::byte* begin, std::size_t bytes) const {
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  const auto from = (reinterpret_cast<std::uintptr_t>(begin) + kHugePage - 1) & ~(kHugePage - 1);
  const auto to = reinterpret_cast<std::uintptr_t>(begin + bytes) & ~(kHugePage - 1);
  if (from < to) ::madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
}

}  // namespace lockstep::internal
