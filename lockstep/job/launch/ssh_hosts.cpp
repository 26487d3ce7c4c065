#include "lockstep/job/launch/ssh_hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <memory>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log_line.h"
#include "lockstep/base/machine.h"
#include "lockstep/base/pipe.h"
#include "lockstep/job/launch/child_process.h"
#include "lockstep/job/launch/launcher_line.h"
#include "lockstep/job/launch/output_sink.h"
#include "lockstep/job/launch/signal_relay.h"

namespace lockstep::internal {
namespace {

class SshRun {
 public:
  SshRun(const SshPlan& plan, const std::vector<int>& stop_signals) : plan_(plan), relay_(stop_signals) {
    for (const PlannedHost& host : plan.hosts) {
      hosts_.push_back(
          std::make_unique<SshHost>(plan, host, hosts_.empty() ? SshHost::Way::shown : SshHost::Way::kept));
    }
  }

  int run() {
    while (std::ranges::any_of(hosts_, [](const auto& host) { return host->is_running(); })) {
      wait();
      errors_.tend();
      for (const auto& host : hosts_) host->tend(errors_);
      while (const int signal = relay_.take()) pass_on(signal);
      // A host that has died is the cause of what the agents of the others then say.
      for (const auto cause : {SshHost::Failure::lost, SshHost::Failure::killed}) {
        for (const auto& host : hosts_) {
          if (host->failure() == cause) look_at(*host);
        }
      }
      for (const auto& host : hosts_) look_at(*host);
      if (end_at_.expired()) {
        for (const auto& host : hosts_) host->give_up();
      }
    }
    write_rest();
    return exit_code();
  }

 private:
  int exit_code() const {
    const SshHost& first = *hosts_.front();
    if (failed_ != nullptr) return failed_->code();
    const bool has_answer = first.has_ended() && first.failure() == SshHost::Failure::none;
    return stop_signal_ != 0 && !has_answer ? 128 + stop_signal_ : first.code();
  }

  void wait() {
    std::vector<pollfd> fds{{relay_.fd(), POLLIN, 0}, {errors_.pending() ? errors_.fd() : -1, POLLOUT, 0}};
    for (const auto& host : hosts_) {
      for (const pollfd& each : host->wanted(errors_)) fds.push_back(each);
    }
    Deadline wake = std::min(end_at_, errors_.wake_at());
    for (const auto& host : hosts_) wake = std::min(wake, host->wake_at());
    if (::poll(fds.data(), fds.size(), wake.poll_timeout_ms()) < 0 && errno != EINTR) throw system_error("poll", errno);
    if (fds[1].revents != 0) errors_.write_some();
  }

  // Of what was said, for a reader that goes on reading; a signal ends it.
  void write_rest() {
    while (errors_.pending() && relay_.take() == 0) {
      std::array<pollfd, 2> fds{{{errors_.fd(), POLLOUT, 0}, {relay_.fd(), POLLIN, 0}}};
      if (::poll(fds.data(), fds.size(), Deadline::after(OutputSink::kPatience).poll_timeout_ms()) == 0) break;
      if (fds[0].revents != 0) errors_.write_some();
    }
    errors_.give_up();
  }

  void say(const std::string& line) { errors_.append_always(launcher_line(line)); }

  // The first agent tells the others, if it is there; a second signal means at once there, too, and a third one here.
  void pass_on(int signal) {
    if (signal == SIGTSTP) return suspend();
    ++signals_;
    if (stop_signal_ == 0) stop_signal_ = signal;
    SshHost& first = *hosts_.front();
    if (signals_ > 2) end_at_ = Deadline::after({});
    if (first.is_silent()) return end();
    if (first.is_running()) first.send(signal);
  }

  // Ctrl-Z gives the terminal back. Agents that are stopped would take each other for lost.
  void suspend() {
    say("stopped here; the job continues on its hosts (to end it: fg, then Ctrl-C)");
    errors_.write_some();
    ::kill(::getpid(), SIGSTOP);
  }

  void look_at(const SshHost& host) {
    if (!host.is_over()) return;
    const bool is_first = &host == hosts_.front().get();
    const auto failure = host.failure();
    const bool was_asked = stop_signal_ != 0 && failure == SshHost::Failure::unable;
    const bool has_failed = failure != SshHost::Failure::none && !was_asked;
    if (has_failed && !ending_) {
      if (stop_signal_ == 0) failed_ = &host;
      say(fmt::format("host {}: {}", host.name(), host.why(plan_)));
      if (!host.said().empty()) append_said(host.said());
    }
    if ((is_first || has_failed) && !ending_) end();
  }

  // Hanging up asks all agents to stop.
  void end() {
    ending_ = true;
    if (end_at_.is_never()) end_at_ = Deadline::after(plan_.end_limit);
    for (const auto& host : hosts_) {
      host->hang_up();
      if (host->is_silent()) host->give_up();
    }
  }

  void append_said(const std::string& text) {
    errors_.append_always(log_format() == LogFormat::json ? launcher_line(text, LogLevel::error)
                                                          : indented(text) + "\n");
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

  const SshPlan& plan_;
  SignalRelay relay_;
  OutputSink errors_{STDERR_FILENO};
  std::vector<std::unique_ptr<SshHost>> hosts_;
  const SshHost* failed_ = nullptr;
  bool ending_ = false;
  int stop_signal_ = 0;
  int signals_ = 0;
  Deadline end_at_ = Deadline::never();
};

}  // namespace

bool is_this_host(const std::string& name) {
  if (name == "localhost" || name == "::1" || name.starts_with("127.")) return true;
  const std::string full = host_name();
  return name == full || name == full.substr(0, full.find('.'));
}

std::string resolved_by_ssh(const std::string& ssh, const std::string& name) {
  auto [reader, writer] = make_pipe("ssh");
  Command command{.path = ssh,
                  .argv = {"ssh", "-T", "-G", "--", name},
                  .environment = merge_environment(environ, {}),
                  .keep_fds = {},
                  .stdout_fd = writer.get()};
  sigset_t mask{};
  ChildProcess process = ChildProcess::start(command, mask);
  writer.reset();
  std::string text = "\n";
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0; (count = ::read(reader.get(), buffer.data(), buffer.size())) > 0;) {
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
