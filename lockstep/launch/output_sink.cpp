#include "lockstep/launch/output_sink.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace lockstep {
namespace {

std::string cut_to_terminal(const std::string& text, int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return text;
  // Columns are counted as UTF-8 characters. A line that wraps could not be erased.
  std::size_t columns = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool starts_character = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (starts_character && ++columns == size.ws_col) return text.substr(0, i) + "\033[m";
  }
  return text;
}

}  // namespace

OutputSink::OutputSink(int fd) : fd_(fd) {
  struct stat info {};
  is_terminal_ = ::isatty(fd) == 1;
  is_file_ = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

bool OutputSink::same_place(const OutputSink& other) const {
  struct stat mine {};
  struct stat theirs {};
  return ::fstat(fd_, &mine) == 0 && ::fstat(other.fd_, &theirs) == 0 && mine.st_dev == theirs.st_dev &&
         mine.st_ino == theirs.st_ino;
}

void OutputSink::append(std::string_view text) {
  if (broken_ || text.empty()) return;
  erase_status();
  queue_.append(text);
}

void OutputSink::set_status(std::string status) {
  if (!is_terminal_ || broken_ || status == status_) return;
  erase_status();
  status_ = std::move(status);
  // The status is drawn when the queue is written, however often it changes until then.
  if (queue_.empty() && !status_.empty()) queue_.push_back('\r');
}

void OutputSink::erase_status() {
  if (status_drawn_) queue_.append("\r\033[K");
  status_drawn_ = false;
}

// Up to PIPE_BUF bytes always fit into a pipe that poll calls writable, and arrive in one piece. Of these, whole lines.
std::size_t OutputSink::next_write_bytes() const {
  const std::size_t left = queue_.size() - sent_;
  if (is_file_ || left <= PIPE_BUF) return left;
  const std::size_t newline = queue_.rfind('\n', sent_ + PIPE_BUF - 1);
  return newline == std::string::npos || newline < sent_ ? PIPE_BUF : newline + 1 - sent_;
}

void OutputSink::write_some() {
  if (broken_) return;
  if (!status_drawn_ && !status_.empty()) {
    queue_.append(cut_to_terminal(status_, fd_));
    status_drawn_ = true;
  }
  const std::size_t bytes = next_write_bytes();
  if (bytes == 0) return;
  const ssize_t written = ::write(fd_, queue_.data() + sent_, bytes);
  if (written < 0) {
    broken_ = errno != EINTR && errno != EAGAIN;
    return;
  }
  sent_ += static_cast<std::size_t>(written);
  if (sent_ == queue_.size()) {
    queue_.clear();
    sent_ = 0;
  } else if (sent_ >= kMaxQueuedBytes / 4) {
    queue_.erase(0, sent_);
    sent_ = 0;
  }
}

}  // namespace lockstep
