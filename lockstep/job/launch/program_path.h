// Finds the file of a program name, as a shell does, or says why it cannot be executed.
#pragma once

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::internal {

// A program could not be executed. Error{invalid_argument}.
class ExecFailed : public Error {
 public:
  ExecFailed(const std::string& message, int saved_errno)
      : Error(ErrorKind::invalid_argument, message), saved_errno_(saved_errno) {}
  int saved_errno() const { return saved_errno_; }
  // What a shell exits with: 127 for a program that does not exist, 126 for one that cannot be executed.
  int shell_code() const;

 private:
  int saved_errno_;
};

// The error of executing the file, with what to do about it.
ExecFailed cannot_execute(const std::string& path, int saved_errno);

// A name with a slash is a path; any other is looked up in `search_path` (PATH). Throws ExecFailed.
std::string find_program(const std::string& name, const std::string& search_path);

}  // namespace lockstep::internal
