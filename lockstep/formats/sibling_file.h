// Files that another file names, such as the parts of a checkpoint, opened beside it. A name is a plain one: it never
// leads out of the directory, neither by its text nor by a symbolic link. Blocks for disk I/O.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/base/file_io.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

// Error{corrupt_data}, with `origin`, for a name that is empty or has a slash, a control character or dots alone.
void check_sibling_name(std::string_view name, const std::string& origin);

class SiblingFiles {
 public:
  // Error{invalid_argument} if there is no such directory.
  explicit SiblingFiles(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  // "<directory>/<name>", for errors.
  std::string path_of(std::string_view name) const { return (directory_ / name).string(); }
  // Error{corrupt_data}: an invalid name, the file is missing, or it is a link or a directory.
  OpenFile open(const std::string& name) const;

 private:
  std::filesystem::path directory_;
  UniqueFd fd_;
};

}  // namespace lockstep::internal
