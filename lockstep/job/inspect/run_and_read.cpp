#include "lockstep/job/inspect/run_and_read.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/pipe.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/job/launch/child_process.h"
#include "lockstep/job/launch/local_job.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 20;

}  // namespace

std::optional<std::string> run_and_read(const std::vector<std::string>& command, Deadline deadline,
                                        const std::vector<std::pair<std::string, std::string>>& variables) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  Command child;
  child.path = command.front();
  child.argv = command;
  child.environment = merge_environment(environ, variables);
  child.stdin_fd = null.get();
  child.stderr_fd = null.get();
  try {
    auto [reader, writer] = make_pipe("a program's output");
    child.stdout_fd = writer.get();
    sigset_t none;
    ::sigemptyset(&none);
    ChildProcess process = ChildProcess::start(child, none);
    writer.reset();
    std::string text;
    std::string buffer(4096, '\0');
    while (text.size() < kMostBytes) {
      pollfd ready{reader.get(), POLLIN, 0};
      if (::poll(&ready, 1, deadline.poll_timeout_ms()) <= 0) return std::nullopt;  // its destructor kills it
      const ssize_t got = ::read(reader.get(), buffer.data(), buffer.size());
      if (got <= 0) break;
      text.append(buffer, 0, static_cast<std::size_t>(got));
    }
    pollfd ended{process.pidfd(), POLLIN, 0};
    if (::poll(&ended, 1, deadline.poll_timeout_ms()) <= 0) return std::nullopt;
    const std::optional<ExitStatus> status = process.try_reap();
    return status && status->ok() ? std::optional(text) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace lockstep::internal
