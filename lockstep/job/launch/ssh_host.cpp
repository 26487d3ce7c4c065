#include "lockstep/job/launch/ssh_host.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/pipe.h"
#include "lockstep/job/launch/exit_codes.h"

namespace lockstep::internal {
namespace {

constexpr int kSshFailed = 255;
constexpr std::size_t kMostKeptBytes = 4096;  // of what a host has said last
constexpr std::size_t kMostReads = 32;        // at a time, so that one host that says much does not keep all waiting
const Duration kShowAfter = std::chrono::seconds(5);

struct Ends {
  UniqueFd ours, theirs;
};

// Writing to a socket whose reader is gone can be an error, to a pipe it is a signal as well.
Ends make_socket_pair() {
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

std::string why_lost(const SshPlan& plan, const ExitStatus& status) {
  if (status.signal != 0)
    return fmt::format("the ssh connection to it was lost: the local ssh process {}", describe(status));
  switch (status.code) {
    case kCannotExecute:
    case kNotFound:
      return fmt::format(
          "{} does not exist there, or cannot be executed; install Lockstep at this path, or give --remote-path",
          plan.remote_program);
    case kSshFailed:
      return "ssh could not reach it, or has lost the connection. `ssh -o BatchMode=yes <host> true` must work without "
             "a prompt: it needs a key that the host accepts, and the host's key in ~/.ssh/known_hosts";
    default: return fmt::format("it could not join the job (exit code {})", status.code);
  }
}

}  // namespace

SshHost::SshHost(const SshPlan& plan, const PlannedHost& host, Way way)
    : name_(host.order.host),
      way_(way),
      unsent_(encode(host.order)),
      marks_(host.order.secret),
      show_at_(Deadline::after(kShowAfter)) {
  Ends input = make_socket_pair();
  Pipe error = make_pipe("a host");
  Command command{
      .path = host.is_here ? plan.program : plan.ssh,
      .argv = host.is_here ? std::vector<std::string>{"lockstep", kRemoteCommand} : ssh_command(plan, host.order.host),
      .environment = merge_environment(environ, {}),
      .keep_fds = {},
      .stdin_fd = input.theirs.get(),
      .stderr_fd = error.writer.get()};
  sigset_t mask{};
  process_.emplace(ChildProcess::start(command, mask));
  input_ = std::move(input.ours);
  error_ = std::move(error.reader);
  ::fcntl(input_.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(error_.get(), F_SETFL, O_NONBLOCK);
}

SshHost::Failure SshHost::failure() const {
  if (!is_over()) return Failure::none;
  const auto& end = marks_.end();
  if (!end) return given_up_ ? Failure::none : Failure::lost;
  if (end->status.signal != 0) return Failure::killed;
  const bool may_end = end->stage == AgentStage::joined || (way_ == Way::shown && end->status.code == 0);
  return may_end ? Failure::none : Failure::unable;
}

// The others end with the job's code, too, but one that never joined has one of its own. That the program is missing is
// told as on one machine.
int SshHost::code() const {
  const Failure failure = this->failure();
  const int own = marks_.end() ? marks_.end()->status.shell_code() : kRendezvousExitCode;
  const bool has_no_program = failure == Failure::unable && (own == kCannotExecute || own == kNotFound);
  return failure == Failure::none || has_no_program ? own : kRendezvousExitCode;
}

std::string SshHost::why(const SshPlan& plan) const {
  const auto& end = marks_.end();
  if (!end) return why_lost(plan, status_.value_or(ExitStatus{}));
  return fmt::format("its agent {}{}", describe(end->status),
                     end->stage == AgentStage::joined ? "" : " before it had joined the job");
}

std::array<pollfd, 3> SshHost::wanted(const OutputSink& errors) const {
  return {{{is_running() ? process_->pidfd() : -1, POLLIN, 0},
           {errors.full() ? -1 : error_.get(), POLLIN, 0},
           {unsent_.empty() ? -1 : input_.get(), POLLOUT, 0}}};
}

void SshHost::give_up() {
  if (!is_running()) return;
  given_up_ = true;
  process_->signal_group(SIGKILL);
}

void SshHost::tend(OutputSink& errors) {
  write_order();
  if (!errors.full()) read_errors(errors);
  if (waits_to_join() && show_at_.expired()) show_lines(errors);
  if (!is_running()) return;
  if (const auto status = process_->try_reap()) {
    read_errors(errors);
    pass_on(marks_.rest(), errors);
    status_ = status;
    hang_up();
    unsent_.clear();
  }
}

void SshHost::write_order() {
  while (!unsent_.empty() && input_) {
    const ssize_t count = ::send(input_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) hang_up();  // it has ended, which its status explains
    if (count > 0) unsent_.erase(0, static_cast<std::size_t>(count));
  }
}

void SshHost::read_errors(OutputSink& errors) {
  std::array<char, 4096> buffer{};
  for (std::size_t reads = 0; error_ && reads < kMostReads; ++reads) {
    const ssize_t count = ::read(error_.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) {
      error_.reset();
      return;
    }
    pass_on(marks_.take({buffer.data(), static_cast<std::size_t>(count)}), errors);
  }
}

void SshHost::pass_on(const std::string& text, OutputSink& errors) {
  if (way_ == Way::shown) return errors.append(text);
  said_ += text;
  if (said_.size() > kMostKeptBytes) said_.erase(0, said_.size() - kMostKeptBytes);
}

// What an agent or ssh says while it does not get on tells why.
void SshHost::show_lines(OutputSink& errors) {
  std::size_t start = 0;
  for (std::size_t end = 0; (end = said_.find('\n', start)) != std::string::npos; start = end + 1) {
    errors.append(fmt::format("[{}] {}\n", name_, std::string_view(said_).substr(start, end - start)));
  }
  said_.erase(0, start);
}

}  // namespace lockstep::internal
