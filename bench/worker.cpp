#include "bench/worker.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/programs.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/job/launch/local_job.h"

extern char** environ;

namespace bench {
namespace {

using namespace std::chrono_literals;
using lockstep::Deadline;
using lockstep::Error;
using lockstep::ErrorKind;
using lockstep::internal::UniqueFd;

constexpr auto kEndTimeout = 10s;

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw lockstep::system_error("pipe2", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// False at the deadline.
bool wait_readable(int fd, Deadline deadline) {
  pollfd watched{fd, POLLIN, 0};
  for (;;) {
    const int ready = ::poll(&watched, 1, deadline.poll_timeout_ms());
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw lockstep::system_error("poll", errno);
    if (deadline.expired()) return false;
  }
}

}  // namespace

Worker::Worker(std::vector<std::string> command) : name_(fmt::format("{}", fmt::join(command, " "))) {
  Pipe input = make_pipe();
  Pipe output = make_pipe();
  lockstep::internal::Command start;
  start.path = path_of(command.front());
  start.argv = std::move(command);
  start.environment = lockstep::internal::merge_environment(environ, {{"OMP_NUM_THREADS", "1"}});
  start.stdin_fd = input.read_end.get();
  start.stdout_fd = output.write_end.get();
  sigset_t no_signals;
  sigemptyset(&no_signals);
  process_ =
      std::make_unique<lockstep::internal::ChildProcess>(lockstep::internal::ChildProcess::start(start, no_signals));
  input_ = std::move(input.write_end);
  output_ = std::move(output.read_end);
}

Worker::~Worker() {
  input_.reset();
  try {
    wait_readable(process_->pidfd(), Deadline::after(kEndTimeout));
  } catch (const Error&) {
    // Then it is killed without having been waited for.
  }
}

void Worker::wait_ready(Deadline deadline) {
  const std::string line = read_json(deadline);
  if (!nlohmann::json::parse(line).contains("ready")) {
    throw Error(ErrorKind::corrupt_data,
                fmt::format("'{}' should have said that it is ready, but said {}", name_, line));
  }
}

std::vector<double> Worker::measure(std::string_view command, Deadline deadline) {
  const std::string line = fmt::format("{}\n", command);
  // Shorter than a pipe's buffer, which is empty: written whole, without blocking.
  if (::write(input_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    throw Error(ErrorKind::peer_lost, fmt::format("'{}' takes no commands any more; its own messages say why", name_));
  }
  const std::string answer = read_json(deadline);
  const auto json = nlohmann::json::parse(answer);
  if (!json.contains("seconds")) {
    throw Error(ErrorKind::corrupt_data, fmt::format("'{}' was sent \"{}\" and answered {}", name_, command, answer));
  }
  return json["seconds"].get<std::vector<double>>();
}

std::string Worker::read_json(Deadline deadline) {
  for (;;) {
    std::string line = read_line(deadline);
    if (line.starts_with('{') && nlohmann::json::accept(line)) return line;
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

std::string Worker::read_line(Deadline deadline) {
  for (;;) {
    if (const auto end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    if (!wait_readable(output_.get(), deadline)) {
      throw Error(ErrorKind::timeout, fmt::format("'{}' did not answer in time", name_));
    }
    char bytes[4096];
    const ssize_t count = ::read(output_.get(), bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw Error(ErrorKind::peer_lost, fmt::format("'{}' ended; its own messages say why", name_));
    }
    buffer_.append(bytes, static_cast<std::size_t>(count));
  }
}

}  // namespace bench
