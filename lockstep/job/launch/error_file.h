// An ErrorFile is where a rank that knows torchrun's TORCHELASTIC_ERROR_FILE (PyTorch's record decorator) writes its
// error, for its launcher to quote. It is memory, so nothing is left behind. Not thread-safe.
#pragma once

#include <string>

#include "lockstep/base/unique_fd.h"
#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {

class ErrorFile {
 public:
  static constexpr std::size_t kMaxBytes = std::size_t{256} << 10;

  // Throws Error{internal} if there is no memory for it.
  ErrorFile();

  // Its name for the processes of this user, for as long as this object lives.
  std::string path() const;
  // The error in it, in one line: "ValueError: no such model". Empty if there is none that can be read.
  std::string error() const;

 private:
  UniqueFd fd_;
};

// The error in the text of such a file; empty if it is not one.
std::string error_in_file(const std::string& text);
// Writes the failure to the file that the launcher's own TORCHELASTIC_ERROR_FILE names, for a launcher around this one.
// Without that variable, or if it cannot be written, nothing.
void pass_error_on(const RankEnd& first);

}  // namespace lockstep::internal
