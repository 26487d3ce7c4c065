// What a child that is forked does not hold.
#include "lockstep/base/private_fd.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/forked_child.h"

namespace private_fd_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

UniqueFd open_event() {
  return PrivateFd::open([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
}

std::string target_of(int fd) {
  char target[PATH_MAX] = "";
  const ssize_t length =
      ::readlink(std::string("/proc/self/fd/").append(std::to_string(fd)).c_str(), target, sizeof target);
  return {target, length > 0 ? static_cast<std::size_t>(length) : 0};
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

}  // namespace

TEST_CASE("in a child the number of a private descriptor leads nowhere, and its owner there closes nothing else") {
  std::vector<UniqueFd> fds;
  for (int i = 0; i < 100; ++i) fds.push_back(open_event());
  const UniqueFd shared(::eventfd(0, EFD_CLOEXEC));
  CHECK(exit_code_of_child([&] {
          for (const UniqueFd& each : fds) {
            if (target_of(each.get()) != "/dev/null") return false;
          }
          const int number = fds.front().get();
          fds.front().reset();
          const UniqueFd own(::dup(shared.get()));  // takes the number that has become free
          fds.clear();
          return own.get() == number && is_open(own.get()) && target_of(shared.get()).starts_with("anon_inode");
        }) == 0);
  for (const UniqueFd& each : fds) CHECK(target_of(each.get()).starts_with("anon_inode"));
}

TEST_CASE("a connection ends with the process that made it, whatever children it has") {
  int ends[2];
  UniqueFd here, there;
  there = PrivateFd::open([&] {
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return -1;
    here.reset(ends[0]);
    return ends[1];
  });
  REQUIRE(there);
  int gate[2];
  REQUIRE(::pipe(gate) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(gate[1]);
    char byte = 0;
    ::_exit(::read(gate[0], &byte, 1) == 0 ? 0 : 1);  // lives until its parent lets go of the pipe
  }
  ::close(gate[0]);
  there.reset();
  char byte = 0;
  CHECK(::read(here.get(), &byte, 1) == 0);  // the end, though the child lives
  ::close(gate[1]);
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("a descriptor that is moved or closed is not private any more") {
  UniqueFd first = open_event();
  const int number = first.get();
  UniqueFd second = std::move(first);
  second.reset();
  const UniqueFd other(::eventfd(0, EFD_CLOEXEC));
  REQUIRE(other.get() == number);
  CHECK(exit_code_of_child([&] { return target_of(number).starts_with("anon_inode"); }) == 0);
}

TEST_CASE("a child gets none even while another thread opens and closes them") {
  std::atomic<bool> stop{false};
  std::thread opener([&] {
    while (!stop) {
      std::array<UniqueFd, 8> fds;
      for (UniqueFd& each : fds) each = open_event();
    }
  });
  int leaks = 0;
  for (int i = 0; i < 50; ++i) {
    leaks += exit_code_of_child([] {
      for (int fd = 3; fd < 256; ++fd) {
        if (target_of(fd) == "anon_inode:[eventfd]") return false;
      }
      return true;
    });
  }
  stop = true;
  opener.join();
  CHECK(leaks == 0);
}

}  // namespace private_fd_test
