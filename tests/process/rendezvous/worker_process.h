// A running `rendezvous_worker`. Its output is read line by line, with a time limit; it is killed when this goes away.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep {

using Variables = std::map<std::string, std::string>;

class WorkerProcess {
 public:
  // The worker sees these variables and PATH only.
  WorkerProcess(std::vector<std::string> arguments, Variables variables) {
    arguments.insert(arguments.begin(), RENDEZVOUS_WORKER);
    std::vector<std::string> settings;
    if (const char* path = std::getenv("PATH")) variables.emplace("PATH", path);
    for (const auto& [name, value] : variables) settings.push_back(name + "=" + value);
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) throw system_error("pipe2", errno);
    const internal::UniqueFd child_in(in[0]), child_out(out[1]);
    input_.reset(in[1]);
    output_.reset(out[0]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, child_in.get(), STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, child_out.get(), STDOUT_FILENO);
    const int error = ::posix_spawn(&pid_, RENDEZVOUS_WORKER, &actions, nullptr, pointers(arguments).data(),
                                    pointers(settings).data());
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0) throw system_error("starting " RENDEZVOUS_WORKER, error);
  }
  WorkerProcess(WorkerProcess&& other) noexcept
      : pid_(other.pid_),
        running_(std::exchange(other.running_, false)),
        input_(std::move(other.input_)),
        output_(std::move(other.output_)),
        unread_(std::move(other.unread_)) {}
  ~WorkerProcess() {
    if (!running_) return;
    send_signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  void send_signal(int signal) { ::kill(pid_, signal); }
  // Returns once it has stopped.
  void stop() {
    send_signal(SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }

  // The next line of output; "" at its end; "(nothing)" if there was none within the time.
  std::string line(Duration timeout = std::chrono::seconds(25)) {
    const Deadline deadline = Deadline::after(timeout);
    for (;;) {
      const std::size_t end = unread_.find('\n');
      if (end != std::string::npos) {
        const std::string line = unread_.substr(0, end);
        unread_.erase(0, end + 1);
        return line;
      }
      pollfd entry{output_.get(), POLLIN, 0};
      if (::poll(&entry, 1, deadline.poll_timeout_ms()) > 0) {
        char buffer[4096];
        const ssize_t count = ::read(output_.get(), buffer, sizeof buffer);
        if (count <= 0) return "";
        unread_.append(buffer, static_cast<std::size_t>(count));
      }
      if (deadline.expired()) return "(nothing)";
    }
  }

  // Ends its input and waits for it. 128 + signal if one ended it.
  int exit_code() {
    input_.reset();
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    running_ = false;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (std::string& text : texts) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
  }

  pid_t pid_ = 0;
  bool running_ = true;
  internal::UniqueFd input_;
  internal::UniqueFd output_;
  std::string unread_;
};

}  // namespace lockstep
