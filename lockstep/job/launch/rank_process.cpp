#include "lockstep/job/launch/rank_process.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/pipe.h"
#include "lockstep/job/launch/process_status.h"

namespace lockstep::internal {
namespace {

// None for what is no signal.
std::uint64_t bit_of(int signal) { return signal > 0 && signal <= 64 ? std::uint64_t{1} << (signal - 1) : 0; }

}  // namespace

RankProcess::RankProcess(int rank, int index, Command command, RankOutput* output, const sigset_t& mask, int reaper_fd)
    : index_(index), output_(output) {
  std::array<UniqueFd, 2> writers;
  for (std::size_t i = 0; i < streams_.size() && output != nullptr; ++i) {
    Pipe pipe = make_pipe("a rank's output");
    ::fcntl(pipe.reader.get(), F_SETFL, O_NONBLOCK);
    streams_[i] = std::move(pipe.reader);
    writers[i] = std::move(pipe.writer);
  }
  command.stdout_fd = writers[0] ? writers[0].get() : command.stdout_fd;
  command.stderr_fd = writers[1] ? writers[1].get() : command.stderr_fd;
  started_ = steady_clock().now();
  process_.emplace(ChildProcess::start(command, mask, reaper_fd));
  end_.rank = rank;
  end_.pid = process_->pid();
}

std::size_t RankProcess::read(RankStream stream, std::span<char> buffer) {
  const int fd = stream_fd(stream);
  if (fd < 0) return 0;
  const ssize_t got = ::read(fd, buffer.data(), buffer.size());
  if (got > 0) {
    output_->feed(index_, stream, std::string_view(buffer.data(), static_cast<std::size_t>(got)));
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    close(stream);
  }
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

// A rank may have enlarged its pipes. A process that it has left behind may go on writing: what comes later is not
// waited for.
void RankProcess::drain(std::span<char> buffer) {
  for (const RankStream stream : kRankStreams) {
    int held = 0;
    if (stream_fd(stream) < 0 || ::ioctl(stream_fd(stream), FIONREAD, &held) != 0) continue;
    auto left = static_cast<std::size_t>(held);
    while (left > 0) {
      const std::size_t got = read(stream, buffer);
      if (got == 0) break;
      left -= std::min(left, got);
    }
    read(stream, buffer);  // the end, or nothing
  }
}

void RankProcess::close(RankStream stream) {
  if (stream_fd(stream) < 0) return;
  output_->finish(index_, stream);
  streams_[static_cast<std::size_t>(stream)].reset();
}

bool RankProcess::try_reap(std::span<char> buffer) {
  const std::optional<ExitStatus> status = process_->try_reap();
  if (!status) return false;
  process_.reset();
  end_.status = *status;
  end_.after_start = steady_clock().now() - started_;
  end_.killed = end_.killed && (status->signal == SIGKILL || is_left_to_group_);
  drain(buffer);
  if (output_ != nullptr) {
    const ErrorText& text = output_->error_text(index_);
    end_.error = text.first_line();
    end_.last_error_lines = text.last_lines();
  }
  return true;
}

int RankProcess::ended_by_sent() const {
  const std::optional<ExitStatus> status = process_->peek();
  if (!status) return 0;
  const int signal = status->signal != 0 ? status->signal : status->code - 128;
  return (sent_ & bit_of(signal)) != 0 ? signal : 0;
}

void RankProcess::leave_to_group() {
  const int signal = ended_by_sent();
  const bool has_it = std::ranges::any_of(asked_, [this](int pid) { return ::getpgid(pid) == end_.pid; });
  if (!has_it && (sent_to_group_ & bit_of(signal)) == 0) signal_group(signal);
  is_left_to_group_ = true;
}

void RankProcess::signal_group(int signal) {
  if (!process_) return;
  sent_ |= bit_of(signal);
  sent_to_group_ |= bit_of(signal);
  process_->signal_group(signal);
}

void RankProcess::signal_program(int signal) {
  if (!process_) return;
  sent_ |= bit_of(signal);
  const bool is_of_key = signal == SIGINT || signal == SIGQUIT;
  if (is_of_key) asked_ = run_by_shell(end_.pid);  // before the shell ends
  process_->signal_alone(signal);
  for (const int pid : asked_) ::kill(pid, signal);
}

}  // namespace lockstep::internal
