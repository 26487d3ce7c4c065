#include "lockstep/job/launch/remote_host.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/pipe.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/job/launch/agent_marks.h"
#include "lockstep/job/launch/child_process.h"
#include "lockstep/job/launch/exit_codes.h"
#include "lockstep/job/launch/launcher_line.h"
#include "lockstep/job/launch/outcome.h"
#include "lockstep/job/launch/program_path.h"
#include "lockstep/job/launch/remote_order.h"
#include "lockstep/job/launch/signal_relay.h"

namespace lockstep::internal {
namespace {

const Duration kOrderTimeout = std::chrono::seconds(60);
constexpr const char* kJoinedVariable = "LOCKSTEP_JOINED_FD";

// Standard input, without blocking; empty at its end.
std::optional<std::string> read_some() {
  std::array<char, 65536> buffer{};
  while (true) {
    const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count > 0) return std::string(buffer.data(), static_cast<std::size_t>(count));
    if (count < 0 && errno == EINTR) continue;
    return std::nullopt;
  }
}

ReadOrder read_order(Bytes& bytes) {
  const Deadline deadline = Deadline::after(kOrderTimeout);
  while (true) {
    if (auto read = decode_order(bytes)) return *read;
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (::poll(&input, 1, deadline.poll_timeout_ms()) < 0 && errno != EINTR) throw system_error("poll", errno);
    if (deadline.expired())
      throw Error(ErrorKind::timeout, "the launcher's order did not arrive on standard input in time");
    if (input.revents == 0) continue;
    const auto some = read_some();
    if (!some) throw Error(ErrorKind::peer_lost, "standard input ended before the launcher's order was complete");
    bytes += *some;
  }
}

void expect_same(const RemoteOrder& order, const std::string& version, const std::string& program) {
  if (order.version != version) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} is version {}, but the launcher is version {}; install the same version on all hosts",
                            program, version, order.version));
  }
  if (::chdir(order.directory.c_str()) != 0) {
    throw system_error(
        fmt::format("cannot work in {}, where the launcher was started; all hosts need this folder", order.directory),
        errno);
  }
}

class RemoteAgent {
 public:
  RemoteAgent(const RemoteOrder& order, const std::string& program)
      : secret_(order.secret),
        token_(Token::from_bytes(order.token).to_fd()),
        null_(::open("/dev/null", O_RDWR | O_CLOEXEC)) {
    auto [reader, writer] = make_pipe("the agent");
    joined_ = std::move(reader);
    ::fcntl(joined_.get(), F_SETFL, O_NONBLOCK);
    Variables changes = order.environment;
    changes.emplace_back("LOCKSTEP_TOKEN_FD", std::to_string(token_.get()));
    changes.emplace_back(kJoinedVariable, std::to_string(writer.get()));
    Command command{.path = program,
                    .argv = {"lockstep"},
                    .environment = merge_environment(environ, changes),
                    .keep_fds = {token_.get(), writer.get()},
                    .stdin_fd = null_.get()};
    command.argv.insert(command.argv.end(), order.arguments.begin(), order.arguments.end());
    sigset_t mask{};
    process_.emplace(ChildProcess::start(command, mask));
    reach(AgentStage::gathering);
  }

  // The agent alone: it passes on to its ranks what concerns them.
  void signal(int number) const { ::kill(process_->pid(), number); }
  int pidfd() const { return process_->pidfd(); }
  int joined_fd() const { return joined_.get(); }
  // What comes through joined_fd() or never will.
  void read_joined() {
    char byte = 0;
    if (::read(joined_.get(), &byte, 1) == 1) reach(AgentStage::joined);
    joined_.reset();
  }

  // Its exit code as a shell has it, once it has ended.
  std::optional<int> try_reap() {
    const auto status = process_->try_reap();
    if (!status) return std::nullopt;
    if (joined_) read_joined();
    write_mark(end_mark(secret_, {.stage = stage_, .status = *status}));
    return status->shell_code();
  }

 private:
  void reach(AgentStage stage) {
    stage_ = stage;
    write_mark(stage_mark(secret_, stage));
  }

  // In one piece, so that it is not mixed with what the agent says.
  static void write_mark(const std::string& mark) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, mark.data(), mark.size());
  }

  std::string secret_;
  AgentStage stage_ = AgentStage::absent;
  UniqueFd joined_;
  UniqueFd token_;
  UniqueFd null_;
  std::optional<ChildProcess> process_;
};

// `rest`: signals that came with the order.
int watch(RemoteAgent& agent, SignalRelay& relay, Duration end_limit, Bytes rest) {
  bool connected = true;
  Deadline kill_at = Deadline::never();
  while (true) {
    for (const char number : rest) {
      if (number > 0 && number < SIGRTMIN) agent.signal(number);
    }
    rest.clear();
    std::array<pollfd, 4> fds{{{agent.pidfd(), POLLIN, 0},
                               {relay.fd(), POLLIN, 0},
                               {connected ? STDIN_FILENO : -1, POLLIN, 0},
                               {agent.joined_fd(), POLLIN, 0}}};
    if (::poll(fds.data(), fds.size(), kill_at.poll_timeout_ms()) < 0 && errno != EINTR)
      throw system_error("poll", errno);
    while (const int number = relay.take()) {
      if (number != SIGTSTP) agent.signal(number);
    }
    if (connected && fds[2].revents != 0) {
      const auto some = read_some();
      connected = some.has_value();
      if (some) rest = *some;
      if (!connected) {
        agent.signal(SIGTERM);
        agent.signal(SIGCONT);  // nobody is left to let it go on, if somebody has stopped it
        kill_at = Deadline::after(end_limit);
      }
    }
    if (kill_at.expired()) {
      agent.signal(SIGKILL);
      kill_at = Deadline::never();
    }
    if (fds[3].revents != 0) agent.read_joined();
    if (const auto code = agent.try_reap()) return *code;
  }
}

}  // namespace

int run_remote_host(const std::string& program, const std::string& version) {
  std::string host = "?";
  SignalBlock of_writes({SIGPIPE});  // without a reader of marks, the agent is still to be stopped in good order
  try {
    SignalRelay relay;
    Bytes bytes;
    const ReadOrder read = read_order(bytes);
    host = read.order.host;
    expect_same(read.order, version, program);
    RemoteAgent agent(read.order, program);
    const int code = watch(agent, relay, std::chrono::seconds(read.order.end_limit_s), bytes.substr(read.bytes));
    of_writes.discard(SIGPIPE);
    return code;
  } catch (const Error& error) {
    say_on_standard_error(fmt::format("on host {}: {}", host, error.what()), LogLevel::error);
    return kRendezvousExitCode;
  }
}

void tell_of_joining() {
  const auto fd = EnvironmentReader().number(kJoinedVariable);
  if (!fd) return;
  ::unsetenv(kJoinedVariable);
  const UniqueFd writer(*fd);
  [[maybe_unused]] const ssize_t written = ::write(writer.get(), "j", 1);
}

}  // namespace lockstep::internal
