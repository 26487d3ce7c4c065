#include "lockstep/base/log_queue.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <string>

#include "lockstep/base/log.h"
#include "lockstep/base/nonblocking_writer.h"
#include "lockstep/base/unique_fd.h"
#include "tests/support/forked_child.h"
#include "tests/support/pipe.h"

namespace log_queue_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

void fill(int fd) {
  NonblockingWriter writer(fd);
  while (writer.write(std::string(PIPE_BUF, 'x')) > 0) {
  }
  while (writer.write("x") > 0) {
  }
}

bool blocks(int fd) { return (::fcntl(fd, F_GETFL) & O_NONBLOCK) == 0; }

}  // namespace

TEST_CASE("an eager writer never waits, and leaves the descriptor as others know it") {
  const Pipe pipe;
  fill(pipe.writer.get());
  NonblockingWriter writer(pipe.writer.get());
  CHECK(writer.write("a") == -1);
  CHECK(errno == EAGAIN);
  CHECK(blocks(pipe.writer.get()));
  read_available(pipe.reader.get());
  CHECK(writer.write("a") == 1);

  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd near(ends[0]);
  const UniqueFd far(ends[1]);
  fill(near.get());
  CHECK(errno == EAGAIN);
  CHECK(blocks(near.get()));

  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  CHECK(NonblockingWriter(full.get()).write("a") == -1);
  CHECK(errno == ENOSPC);
}

TEST_CASE("a reader that has gone is an error and no signal") {
  Pipe pipe;
  pipe.reader.reset();
  CHECK(testing::exit_code_of_child([&] {
          std::signal(SIGPIPE, SIG_DFL);
          return NonblockingWriter(pipe.writer.get()).write("a") == -1 && errno == EPIPE;
        }) == 0);
}

TEST_CASE("a limit on file sizes is an error and no signal") {
  CHECK(testing::exit_code_of_child([&] {
          const UniqueFd file(::memfd_create("log", MFD_CLOEXEC));
          const rlimit most{.rlim_cur = 4, .rlim_max = 4};
          std::signal(SIGXFSZ, SIG_DFL);
          if (::setrlimit(RLIMIT_FSIZE, &most) != 0) return false;
          NonblockingWriter writer(file.get());
          return writer.write("abcdef") == 4 && writer.write("ef") == -1 && errno == EFBIG;
        }) == 0);
}

TEST_CASE("a log whose reader pauses keeps nobody waiting, loses whole lines, says how many, and goes on") {
  static const Pipe& pipe = *new Pipe;  // the queue lives as long as the process, and writes to it
  static LogQueue& queue = *new LogQueue(pipe.writer.get());
  queue.write("first\n");
  CHECK(read_available(pipe.reader.get()) == "first\n");

  fill(pipe.writer.get());
  const std::string line = std::string(999, 'l') + "\n";
  const std::size_t kept = LogQueue::kMaxBytes / line.size();
  for (std::size_t i = 0; i < kept + 5; ++i) queue.write(line);  // would block for ever
  CHECK_FALSE(queue.drain(Deadline::after(1ms)));

  read_available(pipe.reader.get());
  std::string text;
  const Deadline soon = Deadline::after(10s);
  while (!queue.drain(Deadline::after(1ms)) && !soon.expired()) text += read_available(pipe.reader.get());
  queue.write("last\n");
  CHECK(queue.drain(soon));
  text += read_available(pipe.reader.get());
  std::string expected;
  for (std::size_t i = 0; i < kept; ++i) expected += line;
  CHECK(text == expected + "[lockstep] 5 lines were dropped: the reader was too slow\nlast\n");
}

TEST_CASE("in a forked child a log writes, though its thread and perhaps its lock stayed behind") {
  static const Pipe& pipe = *new Pipe;
  static LogQueue& queue = *new LogQueue(pipe.writer.get());
  CHECK(testing::exit_code_of_child([&] {
          queue.write("child\n");
          return queue.drain(Deadline::never());
        }) == 0);
  CHECK(read_available(pipe.reader.get()) == "child\n");
}

}  // namespace log_queue_test
