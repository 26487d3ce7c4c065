#include "lockstep/base/log_queue.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <thread>

#include "lockstep/base/log_line.h"
#include "lockstep/base/nonblocking_writer.h"
#include "lockstep/base/signal_block.h"

namespace lockstep::internal {
namespace {

constexpr int kRetryMs = 200;
constexpr Duration kAtExit = std::chrono::seconds(1);

// Whether it is worth trying again.
bool may_pass(int error) { return error == EAGAIN || error == EINTR || error == ENOSPC || error == EDQUOT; }

}  // namespace

LogQueue& LogQueue::of_standard_error() {
  // Leaked on purpose: threads may still log while static destructors run.
  static LogQueue& queue = *[] {
    auto* made = new LogQueue(STDERR_FILENO);
    static LogQueue* at_exit = made;
    std::atexit([] { at_exit->drain(Deadline::after(kAtExit)); });
    return made;
  }();
  return queue;
}

LogQueue::LogQueue(int fd) : fd_(fd), pid_(::getpid()) {}

void LogQueue::write(std::string_view line) noexcept {
  if (::getpid() != pid_) {  // a forked child, without the parent's thread, and perhaps with its lock
    NonblockingWriter(fd_).write(line);
    return;
  }
  try {
    const std::lock_guard lock(mutex_);
    enqueue(line);
    if (writing_later_ || write_queued()) return;
    const SignalBlock block;
    writing_later_ = true;
    try {
      std::thread([this] { write_later(); }).detach();
    } catch (...) {
      writing_later_ = false;  // the next line tries again
    }
  } catch (...) {  // no memory for a line: it is lost
  }
}

void LogQueue::enqueue(std::string_view line) {
  if (queue_.size() + line.size() > kMaxBytes) {
    ++lost_;
    return;
  }
  if (lost_ > 0) {
    const std::string text = std::to_string(lost_) + " lines were dropped: the reader was too slow";
    queue_ += library_line(LogLevel::info, -1, text);
  }
  lost_ = 0;
  queue_ += line;
}

// False if something is left that may be written later.
bool LogQueue::write_queued() {
  NonblockingWriter writer(fd_);
  while (!queue_.empty()) {
    const ssize_t written = writer.write(queue_);
    if (written < 0 && may_pass(errno)) return false;
    if (written < 0) {
      queue_.clear();
    } else {
      queue_.erase(0, static_cast<std::size_t>(written));
    }
  }
  if (lost_ > 0) enqueue("");
  return queue_.empty() || write_queued();
}

void LogQueue::write_later() {
  for (;;) {
    // poll() is no help here: a file on a full disk is always ready.
    ::poll(nullptr, 0, kRetryMs);
    const std::lock_guard lock(mutex_);
    if (!write_queued()) continue;
    writing_later_ = false;
    return;
  }
}

bool LogQueue::drain(Deadline deadline) noexcept {
  while (::getpid() == pid_) {
    {
      const std::lock_guard lock(mutex_);
      if (queue_.empty() || write_queued()) return true;
    }
    if (deadline.expired()) return false;
    ::poll(nullptr, 0, deadline.poll_timeout_ms(10));
  }
  return true;
}

}  // namespace lockstep::internal
