#include "lockstep/launch/output_sink.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "lockstep/base/unique_fd.h"

using namespace lockstep;

namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  UniqueFd reader;
  UniqueFd writer;
};

bool writable(int fd) {
  pollfd ready{fd, POLLOUT, 0};
  return ::poll(&ready, 1, 0) == 1;
}

std::string read_available(int fd) {
  std::string text(1 << 20, '\0');
  const ssize_t got = ::read(fd, text.data(), text.size());
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return text;
}

std::string written(OutputSink& sink, int reader) {
  while (sink.pending() && writable(sink.fd())) sink.write_some();
  return read_available(reader);
}

}  // namespace

TEST_CASE("a sink writes whole lines in pieces that a pipe takes at once") {
  const Pipe pipe;
  OutputSink sink(pipe.writer.get());
  const std::string line = std::string(99, 'x') + "\n";
  for (int i = 0; i < 100; ++i) sink.append(line);
  sink.write_some();
  const std::string piece = read_available(pipe.reader.get());
  CHECK(piece.size() == PIPE_BUF / line.size() * line.size());
  CHECK(piece.size() + written(sink, pipe.reader.get()).size() == 100 * line.size());
  CHECK_FALSE(sink.pending());
}

TEST_CASE("a sink whose reader pauses becomes full and never blocks") {
  const Pipe pipe;
  OutputSink sink(pipe.writer.get());
  std::size_t appended = 0;
  while (!sink.full()) {
    sink.append(std::string(9999, 'x') + "\n");
    appended += 10000;
    if (writable(sink.fd())) sink.write_some();
  }
  std::size_t read = 0;
  while (sink.pending()) read += written(sink, pipe.reader.get()).size();
  CHECK(read == appended);
  CHECK_FALSE(sink.full());
}

TEST_CASE("a sink whose reader has gone drops everything") {
  Pipe pipe;
  OutputSink sink(pipe.writer.get());
  pipe.reader.reset();
  std::signal(SIGPIPE, SIG_IGN);
  sink.append("a\n");
  sink.write_some();
  CHECK(sink.broken());
  sink.append("b\n");
  CHECK_FALSE(sink.pending());
}

TEST_CASE("on a terminal the status line stays below the last line, and is cut to the width") {
  int main_fd = -1;
  int terminal_fd = -1;
  const winsize size{.ws_row = 5, .ws_col = 8, .ws_xpixel = 0, .ws_ypixel = 0};
  REQUIRE(::openpty(&main_fd, &terminal_fd, nullptr, nullptr, &size) == 0);
  const UniqueFd reader(main_fd);
  const UniqueFd terminal(terminal_fd);
  OutputSink sink(terminal.get());
  REQUIRE(sink.is_terminal());
  sink.set_status("10%");
  CHECK(written(sink, main_fd) == "\r10%");
  sink.append("line\n");
  sink.append("next\n");
  CHECK(written(sink, main_fd) == "\r\033[Kline\r\nnext\r\n10%");
  sink.set_status("10%");
  CHECK_FALSE(sink.pending());
  sink.set_status("\u00e41234567890");
  CHECK(written(sink, main_fd) == "\r\033[K\u00e4123456\033[m");
  sink.set_status("");
  sink.append("end\n");
  CHECK(written(sink, main_fd) == "\r\033[Kend\r\n");
}

TEST_CASE("two descriptors of one pipe are one place") {
  const Pipe pipe;
  const Pipe other;
  const UniqueFd copy(::fcntl(pipe.writer.get(), F_DUPFD_CLOEXEC, 0));
  const OutputSink sink(pipe.writer.get());
  CHECK(sink.same_place(OutputSink(copy.get())));
  CHECK_FALSE(sink.same_place(OutputSink(other.writer.get())));
}
