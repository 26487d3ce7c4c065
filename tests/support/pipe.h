// A pipe whose reader never waits.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "lockstep/base/unique_fd.h"

namespace lockstep::testing {

using namespace internal;

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  UniqueFd reader;
  UniqueFd writer;
};

inline std::string read_available(int fd) {
  std::string text(1 << 20, '\0');
  const ssize_t got = ::read(fd, text.data(), text.size());
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return text;
}

}  // namespace lockstep::testing
