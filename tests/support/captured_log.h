// What this process writes to standard error while the object lives, in whatever thread.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::testing {

using namespace internal;

class CapturedLog {
 public:
  CapturedLog() : file_(std::tmpfile()), saved_(::dup(STDERR_FILENO)) {
    if (file_ == nullptr || !saved_ || ::dup2(::fileno(file_), STDERR_FILENO) < 0) {
      throw system_error("capturing standard error", errno);
    }
  }
  ~CapturedLog() {
    ::dup2(saved_.get(), STDERR_FILENO);
    std::fclose(file_);
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  std::string text() const {
    std::string text;
    char part[4096];
    for (ssize_t bytes = 0;
         (bytes = ::pread(::fileno(file_), part, sizeof part, static_cast<off_t>(text.size()))) > 0;) {
      text.append(part, static_cast<std::size_t>(bytes));
    }
    return text;
  }
  // Returns once it has been written; throws after 20 s.
  void await(const std::string& part) const {
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    while (text().find(part) == std::string::npos) {
      if (deadline.expired()) throw std::runtime_error("not in the log: " + part + "\n" + text());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  std::FILE* const file_;
  const UniqueFd saved_;
};

}  // namespace lockstep::testing
