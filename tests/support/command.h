// Runs another program and collects its standard output; its standard error is this process's. Blocks until it ends:
// the test's own time limit bounds it. For the oracles written in Python.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep {

struct CommandResult {
  int exit_code = -1;  // 128 + signal if one ended it
  std::string output;
};

inline CommandResult run_command(std::vector<std::string> arguments) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error("pipe2", errno);
  const internal::UniqueFd read_end(ends[0]);
  internal::UniqueFd write_end(ends[1]);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw system_error("starting " + arguments[0], error);
  write_end.reset();

  CommandResult result;
  char buffer[4096];
  for (;;) {
    const ssize_t count = ::read(read_end.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    result.output.append(buffer, static_cast<std::size_t>(count));
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

// Whether this Python has PyTorch. It is looked for and not imported, which takes seconds.
inline bool has_pytorch(const std::string& python) {
  return run_command({python, "-c", "import importlib.util as i, sys; sys.exit(i.find_spec('torch') is None)"})
             .exit_code == 0;
}

}  // namespace lockstep
