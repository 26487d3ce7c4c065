// MachineFacts is where checks read: files of /proc, /sys and /etc, limits, variables. Tests give recorded ones. The
// functions may block on the disk for a moment.
#pragma once

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/environment.h"

namespace lockstep::internal {

struct MachineFacts {
  // A file's content; nothing if it cannot be read.
  std::function<std::optional<std::string>(const std::string& path)> file;
  std::function<std::optional<rlimit>(int resource)> limit;
  std::function<std::optional<struct statvfs>(const std::string& path)> file_system;
  // The path of a program in PATH; empty if there is none.
  std::function<std::string(const std::string& name)> program;
  Environment environment = process_environment;
};

// Those of this machine.
MachineFacts this_machine();

// The number behind a name in a text of lines "name: 123 kB" or "name 123"; nothing if it is not there.
std::optional<double> number_of(const std::string& text, const std::string& name);

}  // namespace lockstep::internal
