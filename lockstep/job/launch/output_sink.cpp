#include "lockstep/job/launch/output_sink.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "lockstep/base/format.h"
#include "lockstep/job/launch/launcher_line.h"

namespace lockstep::internal {
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

OutputSink::OutputSink(int fd, const Clock& clock) : fd_(fd), clock_(clock), writer_(fd) {
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

Deadline OutputSink::wake_at() const {
  if (state_ == State::failing) return Deadline::at(failed_at_ + kRetry);
  return full() ? Deadline::at(taken_at_ + kPatience) : Deadline::never();
}

void OutputSink::tend() {
  if (!wake_at().expired(clock_.now())) return;
  if (state_ == State::failing) return write_some();
  state_ = State::dropping;
}

void OutputSink::append(std::string_view text) {
  if (text.empty()) return;
  // Behind a gap the next line is kept, not what is left of the one that was cut.
  if (in_lost_line_ && state_ == State::flowing) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    drop(text.substr(0, end));
    text.remove_prefix(end);
  }
  if (text.empty()) return;
  const bool fits = queue_.size() - sent_ + text.size() <= kMaxQueuedBytes && lost_here_ == 0;
  if (state_ == State::flowing || (state_ == State::failing && fits)) {
    queue(text);
  } else {
    drop(text);
  }
}

void OutputSink::append_always(std::string_view lines) {
  if (state_ == State::gone) return drop(lines);
  note_loss();
  if (in_line_) queue("\n");
  queue(lines);
}

void OutputSink::queue(std::string_view text) {
  note_loss();
  if (queue_.empty()) taken_at_ = clock_.now();
  erase_status();
  queue_.append(text);
  in_line_ = text.back() != '\n';
}

// A line that is cut counts once, when its first part is dropped.
void OutputSink::drop(std::string_view text) {
  if (text.empty()) return;
  auto lines = static_cast<std::uint64_t>(std::ranges::count(text, '\n'));
  if (in_lost_line_) --lines;  // wraps round where there is no newline, and back below
  in_lost_line_ = text.back() != '\n';
  if (in_lost_line_) ++lines;
  lost_lines_ += lines;
  lost_here_ += lines;
}

void OutputSink::note_loss() {
  if (lost_here_ == 0) return;
  const std::uint64_t lost = std::exchange(lost_here_, 0);
  const std::string text = fmt::format("{} line{} dropped here: {}", lost, lost == 1 ? " was" : "s were",
                                       error_ == 0 ? "the reader was too slow" : std::strerror(error_));
  queue((in_line_ ? "\n" : "") + launcher_line(text));
}

void OutputSink::fail(int error) {
  error_ = error;
  failed_at_ = clock_.now();
  if (state_ == State::failing) return;
  if (error == ENOSPC || error == EDQUOT) {
    state_ = State::failing;
    trouble_ = fmt::format("cannot be written: {}; the job continues, and lines that do not fit are dropped",
                           std::strerror(error));
  } else {
    state_ = State::gone;
    trouble_ = fmt::format("can no longer be written: {}; the job continues without it", std::strerror(error));
    give_up();
  }
}

void OutputSink::give_up() {
  if (state_ == State::failing) write_some();
  if (state_ == State::flowing) return;
  state_ = State::gone;
  drop(std::string_view(queue_).substr(sent_));
  queue_.clear();
  sent_ = 0;
}

void OutputSink::set_status(std::string status) {
  if (!is_terminal_ || state_ == State::gone || status == status_) return;
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
  if (state_ == State::gone) return;
  if (!status_drawn_ && !status_.empty()) {
    queue_.append(cut_to_terminal(status_, fd_));
    status_drawn_ = true;
  }
  const std::size_t bytes = next_write_bytes();
  if (bytes == 0) return;
  const ssize_t written = writer_.write(std::string_view(queue_).substr(sent_, bytes));
  if (written < 0) {
    if (errno != EINTR && errno != EAGAIN) fail(errno);
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
  taken_at_ = clock_.now();
  if (state_ == State::failing || queue_.size() - sent_ <= kMaxQueuedBytes / 2) {
    state_ = State::flowing;
    note_loss();
    error_ = 0;
  }
}

}  // namespace lockstep::internal
