// What an action writes to standard error, all threads of the process included.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "lockstep/base/unique_fd.h"
#include "tests/support/temporary_directory.h"

namespace lockstep::testing {

using namespace internal;

template <class Action>
std::string standard_error_of(Action action) {
  const TemporaryDirectory directory;
  const std::string path = directory / "stderr";
  const UniqueFd saved(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  {
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    REQUIRE(::dup2(file.get(), STDERR_FILENO) == STDERR_FILENO);
  }
  action();
  REQUIRE(::dup2(saved.get(), STDERR_FILENO) == STDERR_FILENO);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace lockstep::testing
