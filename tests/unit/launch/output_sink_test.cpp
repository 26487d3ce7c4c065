#include "lockstep/job/launch/output_sink.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "lockstep/base/format.h"
#include "lockstep/base/unique_fd.h"
#include "tests/support/pipe.h"
#include "tests/support/temporary_directory.h"

namespace output_sink_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

bool writable(int fd) {
  pollfd ready{fd, POLLOUT, 0};
  return ::poll(&ready, 1, 0) == 1;
}

std::string written(OutputSink& sink, int reader) {
  while (sink.pending() && writable(sink.fd())) sink.write_some();
  return read_available(reader);
}

class FakeClock final : public Clock {
 public:
  TimePoint now() const override { return time; }
  TimePoint time{std::chrono::seconds(1000)};
};

// Until it is full; how many bytes it took.
std::size_t fill(OutputSink& sink) {
  const std::string line = std::string(9999, 'x') + "\n";
  std::size_t appended = 0;
  while (!sink.full()) {
    sink.append(line);
    appended += line.size();
    if (writable(sink.fd())) sink.write_some();
  }
  return appended;
}

}  // namespace

TEST_CASE("a sink writes whole lines in pieces that a pipe takes at once") {
  const Pipe pipe;
  OutputSink sink(pipe.writer.get());
  const std::string line = fmt::format("{}\n", std::string(99, 'x'));
  for (int i = 0; i < 100; ++i) sink.append(line);
  sink.write_some();
  const std::string piece = read_available(pipe.reader.get());
  CHECK(piece.size() == PIPE_BUF / line.size() * line.size());
  CHECK(piece.size() + written(sink, pipe.reader.get()).size() == 100 * line.size());
  CHECK_FALSE(sink.pending());
}

TEST_CASE("a reader that is slow loses nothing, and slows down who writes") {
  const Pipe pipe;
  FakeClock clock;
  OutputSink sink(pipe.writer.get(), clock);
  std::size_t appended = fill(sink);
  CHECK(sink.full());
  std::size_t read = 0;
  for (int i = 0; i < 20; ++i) {
    clock.time += OutputSink::kPatience / 2;
    sink.tend();
    read += read_available(pipe.reader.get()).size();
    sink.write_some();
    if (!sink.full()) appended += fill(sink);
  }
  while (sink.pending()) read += written(sink, pipe.reader.get()).size();
  CHECK(read == appended);
  CHECK(sink.lost_lines() == 0);
}

TEST_CASE("a reader that pauses holds nobody up for long, loses whole lines, and is told how many") {
  const Pipe pipe;
  FakeClock clock;
  OutputSink sink(pipe.writer.get(), clock);
  const std::size_t appended = fill(sink);
  CHECK(sink.wake_at().when() == clock.time + OutputSink::kPatience);
  clock.time += OutputSink::kPatience;
  sink.tend();
  CHECK_FALSE(sink.full());
  CHECK(sink.wake_at().is_never());
  sink.append("lost\nlost\nlost in ");
  sink.append("two parts");
  CHECK(sink.lost_lines() == 3);

  std::string text;
  while (sink.pending()) text += written(sink, pipe.reader.get());
  sink.append(", to its end\nkept\n");
  sink.append_always("of the launcher\n");
  text += written(sink, pipe.reader.get());
  CHECK(text.substr(appended) ==
        "lockstep: 3 lines were dropped here: the reader was too slow\nkept\nof the launcher\n");
  CHECK(sink.lost_lines() == 3);
}

TEST_CASE("the launcher's own lines wait for a reader that pauses") {
  const Pipe pipe;
  FakeClock clock;
  OutputSink sink(pipe.writer.get(), clock);
  fill(sink);
  clock.time += OutputSink::kPatience;
  sink.tend();
  sink.append("lost\n");
  sink.append_always("rank 1 failed\n");
  std::string text;
  while (sink.pending()) text += written(sink, pipe.reader.get());
  CHECK(text.ends_with("lockstep: 1 line was dropped here: the reader was too slow\nrank 1 failed\n"));
}

TEST_CASE("a disk that is full holds nobody up, is told once, and is tried again") {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  FakeClock clock;
  OutputSink sink(full.get(), clock);
  sink.append("a\n");
  sink.write_some();
  CHECK(sink.take_trouble() ==
        "cannot be written: No space left on device; the job continues, and lines that do not fit are dropped");
  CHECK_FALSE(sink.pending());
  CHECK_FALSE(sink.full());
  CHECK(sink.wake_at().when() == clock.time + OutputSink::kRetry);
  clock.time += OutputSink::kRetry;
  sink.tend();
  CHECK(sink.take_trouble().empty());
  CHECK(sink.wake_at().when() == clock.time + OutputSink::kRetry);
  while (sink.lost_lines() == 0) sink.append(std::string(9999, 'x') + "\n");
  sink.append("b\n");
  CHECK(sink.lost_lines() == 2);
  sink.give_up();
  CHECK(sink.lost_lines() > 2);
}

TEST_CASE("what was kept for a full disk is written once there is room") {
  const TemporaryDirectory directory;
  const UniqueFd file(::open((directory / "out").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const UniqueFd place(::fcntl(full.get(), F_DUPFD_CLOEXEC, 0));
  FakeClock clock;
  OutputSink sink(place.get(), clock);
  sink.append("a\n");
  sink.write_some();
  sink.append("b\n");
  REQUIRE(::dup2(file.get(), place.get()) >= 0);
  clock.time += OutputSink::kRetry;
  sink.tend();
  CHECK_FALSE(sink.pending());
  std::ifstream written(directory / "out");
  CHECK(std::string(std::istreambuf_iterator<char>(written), {}) == "a\nb\n");
}

TEST_CASE("a reader that has gone loses everything, and that is told once") {
  Pipe pipe;
  OutputSink sink(pipe.writer.get());
  pipe.reader.reset();
  sink.append("a\n");
  sink.write_some();
  CHECK(sink.take_trouble() == "can no longer be written: Broken pipe; the job continues without it");
  CHECK_FALSE(sink.pending());
  sink.append("b\n");
  CHECK_FALSE(sink.pending());
  CHECK(sink.take_trouble().empty());
  CHECK(sink.lost_lines() == 2);
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

}  // namespace output_sink_test
