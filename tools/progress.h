// A line on standard error that says how far a long work is, if that is a terminal. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/clock.h"

namespace lockstep::tools {

class Progress {
 public:
  // "verifying step-0000000400"; in bytes.
  Progress(std::string doing, std::uint64_t bytes);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // takes the line away

  void at(std::uint64_t bytes);

 private:
  std::string doing_;
  std::uint64_t bytes_;
  bool is_terminal_;
  bool is_shown_ = false;
  TimePoint shown_at_;
};

}  // namespace lockstep::tools
