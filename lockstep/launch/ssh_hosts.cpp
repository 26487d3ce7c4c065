#include "lockstep/launch/ssh_hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/launch/child_process.h"
#include "lockstep/launch/signal_relay.h"

namespace lockstep::internal {
namespace {

constexpr int kRendezvousFailed = 3;
constexpr int kUsageError = 2;
constexpr int kSshFailed = 255;
constexpr std::size_t kMostKeptBytes = 4096;  // of what a host has said last
constexpr std::size_t kMostMarkBytes = 64;
const Duration kEndTimeout = std::chrono::seconds(40);  // for agents that were told to stop

struct Pipe {
  UniqueFd reader, writer;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error("making a pipe for a host", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Writing to a socket whose reader is gone can be an error, to a pipe it is a signal as well.
Pipe make_socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw system_error("making a socket for a host", errno);
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// No question is asked, since nobody may be there to answer, and a host that does not answer is noticed.
std::vector<std::string> ssh_command(const SshPlan& plan, const std::string& host) {
  return {"ssh",
          "-T",
          "-x",
          "-o",
          "BatchMode=yes",
          "-o",
          "ConnectTimeout=10",
          "-o",
          "ServerAliveInterval=3",
          "-o",
          "ServerAliveCountMax=3",
          "--",
          host,
          shell_word(plan.remote_program) + " " + kRemoteCommand};
}

// One host: its ssh, or its agent's keeper if it is this host.
class Host {
 public:
  Host(const SshPlan& plan, const SshHost& host, bool is_first)
      : name_(host.order.host), is_first_(is_first), unsent_(encode(host.order)) {
    Pipe input = make_socket_pair();
    Pipe error = make_pipe();
    Command command{.path = host.is_here ? plan.program : plan.ssh,
                    .argv = host.is_here ? std::vector<std::string>{"lockstep", kRemoteCommand}
                                         : ssh_command(plan, host.order.host),
                    .environment = merge_environment(environ, {}),
                    .keep_fds = {},
                    .stdin_fd = input.reader.get(),
                    .stderr_fd = error.writer.get()};
    sigset_t mask{};
    process_.emplace(ChildProcess::start(command, mask));
    input_ = std::move(input.writer);
    error_ = std::move(error.reader);
    ::fcntl(input_.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(error_.get(), F_SETFL, O_NONBLOCK);
  }

  const std::string& name() const { return name_; }
  bool is_running() const { return !code_; }
  int code() const { return code_.value_or(0); }
  // Its connection has ended before its agent.
  bool is_lost() const { return code_ && !agent_ended_; }
  // Not a rank of the job, whose exit code the first agent has as well.
  bool has_failed() const {
    return code_ && (!agent_ended_ || (!is_first_ && (*code_ == kRendezvousFailed || *code_ == kUsageError)));
  }
  const std::string& said() const { return said_; }

  std::array<pollfd, 3> wanted() const {
    return {{{is_running() ? process_->pidfd() : -1, POLLIN, 0},
             {error_.get(), POLLIN, 0},
             {unsent_.empty() ? -1 : input_.get(), POLLOUT, 0}}};
  }

  void send(int signal) { unsent_ += static_cast<char>(signal); }
  void hang_up() { input_.reset(); }
  void kill() {
    if (is_running()) process_->signal_group(SIGKILL);
  }

  void tend() {
    write_order();
    read_errors();
    if (!is_running()) return;
    if (const auto status = process_->try_reap()) {
      code_ = status->shell_code();
      read_errors();
      hang_up();
      unsent_.clear();
    }
  }

 private:
  void write_order() {
    while (!unsent_.empty() && input_) {
      const ssize_t count = ::send(input_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count <= 0) hang_up();  // it has ended, which its status explains
      if (count > 0) unsent_.erase(0, static_cast<std::size_t>(count));
    }
  }

  void read_errors() {
    std::array<char, 4096> buffer{};
    while (error_) {
      const ssize_t count = ::read(error_.get(), buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count <= 0) {
        error_.reset();
        return;
      }
      unread_.append(buffer.data(), static_cast<std::size_t>(count));
      take_marks();
    }
  }

  // Passes on all but the mark that the far end has put behind what its agent said.
  void take_marks() {
    const std::string_view mark = kEndedMark;
    while (!unread_.empty()) {
      const std::size_t start = unread_.find(mark.front());
      pass_on(std::string_view(unread_).substr(0, start));
      if (start == std::string::npos) return unread_.clear();
      unread_.erase(0, start);
      const std::size_t end = unread_.find('\n');
      if (end == std::string::npos && unread_.size() < kMostMarkBytes) return;
      if (unread_.starts_with(mark) && end != std::string::npos) {
        agent_ended_ = true;
        unread_.erase(0, end + 1);
      } else {
        pass_on(std::string_view(unread_).substr(0, 1));
        unread_.erase(0, 1);
      }
    }
  }

  void pass_on(std::string_view text) {
    if (is_first_) {
      [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
      return;
    }
    said_ += text;
    if (said_.size() > kMostKeptBytes) said_.erase(0, said_.size() - kMostKeptBytes);
  }

  std::string name_;
  bool is_first_;
  Bytes unsent_;
  std::string unread_;
  std::string said_;
  bool agent_ended_ = false;
  std::optional<ChildProcess> process_;
  UniqueFd input_, error_;
  std::optional<int> code_;
};

std::string why(const SshPlan& plan, int code) {
  switch (code) {
    case 126:
    case 127:
      return fmt::format("{} is not there, or cannot be executed; install Lockstep at this path, or give --remote-path",
                         plan.remote_program);
    case kSshFailed:
      return "ssh could not reach it, or has lost it. `ssh -o BatchMode=yes <host> true` must work without a question: "
             "a key that the host accepts, and the host's key in ~/.ssh/known_hosts";
    default: return fmt::format("it could not take part (exit code {})", code);
  }
}

class SshRun {
 public:
  SshRun(const SshPlan& plan, const std::vector<int>& stop_signals) : plan_(plan), relay_(stop_signals) {
    for (const SshHost& host : plan.hosts) hosts_.push_back(std::make_unique<Host>(plan, host, hosts_.empty()));
  }

  int run() {
    while (std::ranges::any_of(hosts_, [](const auto& host) { return host->is_running(); })) {
      wait();
      for (const auto& host : hosts_) host->tend();
      while (const int signal = relay_.take()) pass_on(signal);
      // A connection that has died is the cause of what the agents then say.
      for (const auto& host : hosts_) {
        if (host->is_lost()) look_at(*host);
      }
      for (const auto& host : hosts_) look_at(*host);
      if (end_at_.expired()) {
        for (const auto& host : hosts_) host->kill();
      }
    }
    of_writes_.discard(SIGPIPE);
    return failed_ != nullptr && !stopped_ ? kRendezvousFailed : hosts_.front()->code();
  }

 private:
  void wait() {
    std::vector<pollfd> fds{{relay_.fd(), POLLIN, 0}};
    for (const auto& host : hosts_) {
      for (const pollfd& each : host->wanted()) fds.push_back(each);
    }
    if (::poll(fds.data(), fds.size(), end_at_.poll_timeout_ms()) < 0 && errno != EINTR) {
      throw system_error("poll", errno);
    }
  }

  // The first agent tells the others; a second signal means at once there, too, and a third one here.
  void pass_on(int signal) {
    ++signals_;
    stopped_ = true;
    if (hosts_.front()->is_running()) hosts_.front()->send(signal);
    if (signals_ > 2) end_at_ = Deadline::after({});
  }

  void look_at(const Host& host) {
    if (host.is_running()) return;
    const bool is_first = &host == hosts_.front().get();
    if (failed_ == nullptr && !ending_ && host.has_failed()) {
      failed_ = &host;
      std::fprintf(stderr, "lockstep: host %s: %s\n", host.name().c_str(), why(plan_, host.code()).c_str());
      if (!host.said().empty()) std::fprintf(stderr, "%s\n", indented(host.said()).c_str());
    }
    if ((is_first || failed_ != nullptr) && !ending_) end();
  }

  // Hanging up asks all agents to stop.
  void end() {
    ending_ = true;
    if (end_at_.is_never()) end_at_ = Deadline::after(kEndTimeout);
    for (const auto& host : hosts_) host->hang_up();
  }

  static std::string indented(const std::string& text) {
    std::string result = "  ";
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n' && i + 1 == text.size()) break;
      result += text[i];
      if (text[i] == '\n') result += "  ";
    }
    return result;
  }

  const SignalBlock of_writes_{{SIGPIPE}};  // whoever reads our standard error may have gone
  const SshPlan& plan_;
  SignalRelay relay_;
  std::vector<std::unique_ptr<Host>> hosts_;
  const Host* failed_ = nullptr;
  bool ending_ = false;
  bool stopped_ = false;
  int signals_ = 0;
  Deadline end_at_ = Deadline::never();
};

}  // namespace

bool is_this_host(const std::string& name) {
  if (name == "localhost" || name == "::1" || name.starts_with("127.")) return true;
  std::array<char, 256> own{};
  if (::gethostname(own.data(), own.size() - 1) != 0) return false;
  const std::string_view full(own.data());
  return name == full || name == full.substr(0, full.find('.'));
}

std::string resolved_by_ssh(const std::string& ssh, const std::string& name) {
  Pipe output = make_pipe();
  Command command{.path = ssh,
                  .argv = {"ssh", "-G", "--", name},
                  .environment = merge_environment(environ, {}),
                  .keep_fds = {},
                  .stdout_fd = output.writer.get()};
  sigset_t mask{};
  ChildProcess process = ChildProcess::start(command, mask);
  output.writer.reset();
  std::string text = "\n";
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0; (count = ::read(output.reader.get(), buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  constexpr std::string_view kKey = "\nhostname ";
  const std::size_t start = text.find(kKey);
  if (start == std::string::npos) return name.substr(name.find('@') + 1);  // npos + 1 is 0
  const std::size_t from = start + kKey.size();
  return text.substr(from, text.find('\n', from) - from);
}

int run_ssh_hosts(const SshPlan& plan, const std::vector<int>& stop_signals) {
  return SshRun(plan, stop_signals).run();
}

}  // namespace lockstep::internal
