// A fresh directory, removed with everything in it at the end of the scope.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

// Where files are in memory, if there is such a place: for tests whose time would go into waiting for a disk.
inline std::filesystem::path memory_directory() {
  std::error_code error;
  return std::filesystem::is_directory("/dev/shm", error) && ::access("/dev/shm", W_OK) == 0
             ? std::filesystem::path("/dev/shm")
             : std::filesystem::temp_directory_path();
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() : TemporaryDirectory(std::filesystem::temp_directory_path()) {}
  explicit TemporaryDirectory(const std::filesystem::path& parent) : path_((parent / "lockstep-test-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw system_error("mkdtemp", errno);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace lockstep
