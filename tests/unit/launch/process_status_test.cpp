#include "lockstep/job/launch/process_status.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/unique_fd.h"

namespace process_status_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

// Both ends of a TCP connection within this machine.
std::pair<UniqueFd, UniqueFd> connection() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  socklen_t size = sizeof address;
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(::bind(listener.get(), plain, size) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  REQUIRE(::getsockname(listener.get(), plain, &size) == 0);
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(client.get(), plain, size) == 0);
  return {std::move(client), UniqueFd(::accept(listener.get(), nullptr, nullptr))};
}

ProcessActivity activity_of(int pid) {
  const auto activity = read_activity(pid, pid, TcpBytes::read());
  REQUIRE(activity);
  return *activity;
}

}  // namespace

TEST_CASE("what a child receives by a TCP connection is progress") {
  const auto [here, there] = connection();
  const int child = ::fork();
  if (child == 0) {
    std::vector<char> buffer(1 << 16);
    while (::recv(there.get(), buffer.data(), buffer.size(), 0) > 0) {
    }
    for (;;) ::pause();
  }
  ActivityWindow window;
  window.add(steady_clock().now(), activity_of(child), 10s);
  const std::vector<char> bytes(1 << 14);
  for (int i = 0; i < 30; ++i) {  // half a megabyte a second: next to no time of a processor
    CHECK(::send(here.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    std::this_thread::sleep_for(30ms);
  }
  window.add(steady_clock().now(), activity_of(child), 10s);
  CHECK(window.cpu() < 0.5);
  CHECK(activity_of(child).bytes >= 30 * bytes.size());
  CHECK(window.is_progress());
  // The connections that the process of a rank has are Lockstep's, whoever has inherited them.
  TcpBytes tcp = TcpBytes::read();
  CHECK(tcp.of_process(child) >= 30 * bytes.size());
  tcp.leave_out(::getpid());
  CHECK(tcp.of_process(child) == 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_CASE("what a shell runs is found, through shells in between, and nothing that a program has started") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const int shell = ::fork();
  if (shell == 0) {
    ::dup2(writer.get(), STDOUT_FILENO);
    ::execl("/bin/sh", "sh", "-c", "(timeout 1000 sh -c 'echo $PPID; exec sleep 1000'; :) & wait", nullptr);
    ::_exit(127);
  }
  writer.reset();
  char text[16] = {};
  REQUIRE(::read(reader.get(), text, sizeof text - 1) > 1);
  const int program = std::atoi(text);
  const std::vector<int> run = run_by_shell(shell);
  REQUIRE(run.size() == 2);  // a shell in between, and the program
  CHECK(run[1] == program);
  CHECK(children_of(program).size() == 1);
  CHECK(run_by_shell(program).empty());
  for (const int pid : {children_of(program)[0], run[1], run[0], shell}) ::kill(pid, SIGKILL);
  ::waitpid(shell, nullptr, 0);
}

TEST_CASE("a process that sleeps and looks around makes no progress") {
  const auto [here, there] = connection();
  const int child = ::fork();
  if (child == 0) {
    for (;;) {
      char byte = 'x';
      ::send(there.get(), &byte, 1, MSG_DONTWAIT);  // a heartbeat
      ::usleep(10'000);
    }
  }
  ActivityWindow window;
  for (int i = 0; i < 2; ++i) {
    window.add(steady_clock().now(), activity_of(child), 10s);
    std::this_thread::sleep_for(500ms);
  }
  CHECK_FALSE(window.is_progress());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace process_status_test
