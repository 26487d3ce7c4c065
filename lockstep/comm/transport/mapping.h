// A Mapping owns one shared-memory mapping: an anonymous memory file (memfd) that vanishes with its last user.
// Movable, not copyable. Thread-safe to read.
#pragma once

#include <cstddef>

#include "lockstep/base/fork_guard.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

class Mapping {
 public:
  // A new, sealed, sparse, zeroed memory file of `bytes` bytes (whole pages are taken as they are touched).
  static Mapping create(std::size_t bytes);
  // Maps an existing one of which `bytes` bytes are expected; Error{corrupt_data} if its size differs.
  static Mapping attach(UniqueFd fd, std::size_t bytes);

  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  int fd() const { return fd_.get(); }

  // Takes the pages of a range now, instead of at first touch, which would be SIGBUS if there are none. Error{internal}
  // if there are none.
  void populate(std::byte* begin, std::size_t bytes) const;
  // Asks for 2 MiB pages in a range. A hint.
  void prefer_huge_pages(std::byte* begin, std::size_t bytes) const;

 private:
  Mapping(UniqueFd fd, std::size_t bytes);

  const ForkGuard fork_guard_;
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace lockstep::internal
