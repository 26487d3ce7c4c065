#include "lockstep/job/launch/program_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <ios>
#include <optional>
#include <sstream>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

// 0, or the errno that executing the file would give.
int why_not_executable(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return EISDIR;
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

// Nothing: it cannot be read.
std::optional<std::string> begin_of(const std::string& path) {
  std::string begin(64, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return std::nullopt;
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return begin;
}

// Of an ELF file: how wide it is, the order of its bytes, and the machine.
std::string processor_of(const std::string& begin) {
  return begin.size() < 20 ? std::string() : begin.substr(4, 2) + begin.substr(18, 2);
}

// A file that the kernel does not take for a program: a script, or a program for another kind of processor.
std::string hint_for_format(const std::string& path) {
  const std::optional<std::string> known = begin_of(path);
  if (!known) return "";
  const std::string& begin = *known;
  if (begin.starts_with("\177ELF")) {
    const std::string own = processor_of(begin_of("/proc/self/exe").value_or(""));
    const bool is_own = own.empty() || processor_of(begin).empty() || processor_of(begin) == own;
    return is_own ? "; it is damaged, or was not linked to a program" : "; it was built for another kind of processor";
  }
  if (begin.empty()) return "; it is empty";
  if (begin.find('\0') != std::string::npos) return "; it is not a program";
  const bool is_python = path.ends_with(".py");
  return fmt::format(
      "; as a script it needs a first line that names its interpreter, such as {}, or run it with: {} {}",
      is_python ? "#!/usr/bin/env python3" : "#!/bin/sh", is_python ? "python3" : "sh", path);
}

std::string hint_for(const std::string& path, int saved_errno) {
  if (saved_errno == ENOEXEC) return hint_for_format(path);
  if (saved_errno == ENOENT && ::access(path.c_str(), F_OK) == 0) return "; the interpreter that it needs is missing";
  if (saved_errno != EACCES || ::access(path.c_str(), X_OK) == 0) return "";
  return path.ends_with(".py") ? fmt::format("; to run a Python script: python3 {}", path)
                               : fmt::format("; chmod +x {}", path);
}

}  // namespace

ExecFailed cannot_execute(const std::string& path, int saved_errno) {
  return ExecFailed(
      fmt::format("cannot execute '{}': {}{}", path, std::strerror(saved_errno), hint_for(path, saved_errno)),
      saved_errno);
}

int ExecFailed::shell_code() const { return saved_errno_ == ENOENT ? 127 : 126; }

std::string find_program(const std::string& name, const std::string& search_path) {
  if (name.find('/') != std::string::npos) {
    const int failure = why_not_executable(name);
    if (failure != 0) throw cannot_execute(name, failure);
    return name;
  }
  std::string unusable;
  int unusable_errno = 0;
  std::istringstream directories(search_path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    const std::string path = (directory.empty() ? "." : directory) + "/" + name;
    const int failure = why_not_executable(path);
    if (failure == 0) return path;
    if (failure == EACCES && unusable.empty()) {
      unusable = path;
      unusable_errno = failure;
    }
  }
  if (!unusable.empty()) throw cannot_execute(unusable, unusable_errno);
  const bool here = !name.empty() && ::access(name.c_str(), F_OK) == 0;
  throw ExecFailed(fmt::format("program '{}' was not found in PATH{}", name,
                               here ? fmt::format("; to run the file in this directory: ./{}", name) : ""),
                   ENOENT);
}

}  // namespace lockstep::internal
