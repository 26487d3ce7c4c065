#include "lockstep/job/launch/stack_reader.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <string>
#include <thread>

#include "lockstep/base/observe/flight_recorder.h"
#include "lockstep/base/observe/stack_recorder.h"
#include "lockstep/job/launch/symbols.h"
#include "tests/support/sanitized.h"

namespace lockstep::internal {
namespace {

using namespace std::chrono_literals;

// In place of doctest's.
void install(int signal, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  if (handler != nullptr) {
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO;
  }
  ::sigaction(signal, &action, nullptr);
}

// A child that shares the memory with this process, and records its stacks, until the test has ended.
class Recorded {
 public:
  template <class Act>
  Recorded(const FlightMemory& memory, Act act, void (*handler)(int, siginfo_t*, void*) = nullptr) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      for (const int signal : {SIGFPE, SIGABRT, SIGSEGV}) install(signal, handler);
      start_stack_recorder(*memory.stacks());
      const bool told = ::write(ready[1], "r", 1) == 1;
      if (told) act();
      ::_exit(0);
    }
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Recorded() {
    ::kill(pid_, SIGKILL);
    wait();
  }

  int pid() const { return pid_; }
  int wait() {
    int status = 0;
    if (pid_ > 0) ::waitpid(pid_, &status, 0);
    return status;
  }

 private:
  int pid_ = 0;
};

[[gnu::noinline]] void rests() {
  for (;;) ::pause();
}

StackRequest answered(const FlightMemory& memory) {
  StackRequest request(memory);
  const Deadline limit = Deadline::after(10s);
  while (!request.complete() && !limit.expired()) std::this_thread::sleep_for(1ms);
  return request;
}

std::string text_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST_CASE("the stacks of a living process") {
  if (testing::kIsSanitized) return;  // the thread sanitizer calls handlers later, from elsewhere
  const FlightMemory memory = FlightMemory::make_shared({.rank = 0, .world_size = 1});
  const Recorded process(memory, [] {
    const std::thread other(rests);
    rests();
  });
  const Deadline limit = Deadline::after(20s);
  for (bool found = false; !found;) {  // once both threads are where they stay
    REQUIRE(!limit.expired());
    const StackRequest request = answered(memory);
    CHECK(request.remark() == "");
    const std::vector<ThreadStack> threads = request.take();
    REQUIRE(!threads.empty());
    CHECK(threads.front().is_main);
    CHECK(threads.front().thread == process.pid());
    if (threads.front().remark == "its threads block signals") continue;  // while it starts the other one
    CHECK(threads.front().remark == "");
    Symbols symbols(Deadline::after(10s));
    const std::string text = text_of(describe_stacks(threads, symbols));
    CAPTURE(text);
    CHECK(text.find("main thread") != std::string::npos);
    found = text.find("main thread\n  #0 pause ") == 0 && text.find("::rests()") != text.rfind("::rests()");
    CHECK(text.find("on_launcher") == std::string::npos);
  }
}

TEST_CASE("functions of the program are told from those of libraries that are part of it") {
  for (const char* function :
       {"main", "Data::get_batch(std::span<long const, 18446744073709551615ul>) const",
        "void train<int>(lockstep::World&)", "std::vector<int> read<int>(int)",
        "main::{lambda()#1}::operator()() const", "my::lockstep::f()",
        "std::_Function_handler<int (unsigned long), lockstep::f<Data>()::{lambda(int)#1}>::_M_invoke(int)",
        "std::thread::_State_impl<std::thread::_Invoker<std::tuple<main::{lambda(lockstep::A)#1}> > >::_M_run()"}) {
    CAPTURE(function);
    CHECK(owner_of_function(function) == CodeOwner::program);
  }
  for (const char* function : {"lockstep::internal::Prefetcher<Batch>::work(std::stop_token)",
                               "std::optional<int> lockstep::next<int>(lockstep::Deadline)", "at::native::add()"}) {
    CAPTURE(function);
    CHECK(owner_of_function(function) == CodeOwner::library);
  }
  for (const char* function :
       {"bool std::_V2::condition_variable_any::wait<std::unique_lock<std::mutex>, f()::{lambda()#1}>(int)",
        "std::thread::_State_impl<std::thread::_Invoker<std::tuple<lockstep::f()::{lambda()#1}> > >::_M_run()",
        "std::thread::_State_impl<std::thread::_Invoker<std::tuple<void (lockstep::A::*)(), A*> > >::_M_run()",
        "std::thread::_State_impl<std::thread::_Invoker<std::tuple<void (*)()> > >::_M_run()",
        "void std::__invoke_impl<void, lockstep::f()::{lambda()#1}>(std::__invoke_other)",
        "std::function<int (unsigned long)>::operator()(unsigned long) const"}) {
    CAPTURE(function);
    CHECK(owner_of_function(function) == CodeOwner::glue);
  }
}

TEST_CASE("a process without the handler is not signalled") {
  const FlightMemory memory = FlightMemory::make_shared({.rank = 0, .world_size = 1});
  CHECK(StackRequest(memory).remark() == "its program records no stacks: it has not created a Lockstep group yet");
  CHECK(StackRequest(FlightMemory::make_private({})).remark() ==
        "its program records no stacks: it has not created a Lockstep group yet");
}

TEST_CASE("a process that runs another program now is not signalled") {
  const FlightMemory memory = FlightMemory::make_shared({.rank = 0, .world_size = 1});
  const Recorded process(memory, [] { ::execl("/bin/sleep", "sleep", "100", nullptr); });
  const Deadline limit = Deadline::after(10s);
  while (StackRequest(memory).remark().empty() && !limit.expired()) std::this_thread::sleep_for(1ms);
  CHECK(StackRequest(memory).remark() ==
        "its program has no signal handler that records stacks: it replaced the handler, called exec, or had no free "
        "signal");
  CHECK(::kill(process.pid(), 0) == 0);
}

TEST_CASE("a process whose program has taken the signal for itself is not signalled") {
  const FlightMemory memory = FlightMemory::make_shared({.rank = 0, .world_size = 1});
  const int fd = ::dup(memory.fd());
  const Recorded process(memory, [&] {
    std::signal(memory.stacks()->header.signal.load(), [](int) { ::_exit(7); });
    FlightRecorder recorder(FlightMemory::inherit(fd));
    for (int i = 0; i < 16; ++i) {
      FlightRecord record;
      recorder.add(record);
    }
    rests();
  });
  const Deadline limit = Deadline::after(10s);
  while (memory.header().operations.load() < 16 && !limit.expired()) std::this_thread::sleep_for(1ms);
  while (memory.stacks()->header.signal.load() != 0 && !limit.expired()) std::this_thread::sleep_for(1ms);
  CHECK(StackRequest(memory).remark() ==
        "its program has no signal handler that records stacks: it replaced the handler, called exec, or had no free "
        "signal");
}

TEST_CASE("a stopped process is not waited for") {
  const FlightMemory memory = FlightMemory::make_shared({.rank = 0, .world_size = 1});
  const Recorded process(memory, rests);
  ::kill(process.pid(), SIGSTOP);
  int status = 0;
  ::waitpid(process.pid(), &status, WUNTRACED);
  const StackRequest request(memory);
  CHECK(request.complete());
  CHECK(request.remark() == "a stopped process cannot record its stacks");
}

TEST_CASE("a crash is recorded, and ends the process as before") {
  if (testing::kIsSanitized) return;  // sanitizers report crashes themselves
  const FlightMemory memory = FlightMemory::make_shared({.rank = 0, .world_size = 1});
  CHECK(!read_crash(memory));
  for (const int signal : {SIGFPE, SIGABRT}) {
    const FlightMemory own = FlightMemory::make_shared({.rank = 0, .world_size = 1});
    Recorded process(own, [signal] { ::raise(signal); });
    const int status = process.wait();
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == signal);
    const std::optional<CrashStack> crash = read_crash(own);
    REQUIRE(crash);
    CHECK(crash->signal == signal);
    CHECK(crash->thread.is_main);
    CHECK(crash->thread.thread == process.pid());
    CHECK(crash->thread.frames.size() > 2);
    CHECK(crash->thread.frames.front().file.find("libc") != std::string::npos);
  }
}

TEST_CASE("a crash is handed on to the handler that was there before") {
  if (testing::kIsSanitized) return;
  const FlightMemory memory = FlightMemory::make_shared({.rank = 0, .world_size = 1});
  Recorded process(
      memory, [] { ::raise(SIGFPE); }, [](int, siginfo_t*, void*) { ::_exit(7); });
  const int status = process.wait();
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
  CHECK(read_crash(memory));
}

// Of a program that recovers from faults below an address, as a runtime does with its guard pages.
constexpr std::uintptr_t kEndOfHandled = 0x100;
sigjmp_buf after_fault;

void recovers(int signal, siginfo_t* info, void* /*context*/) {
  if (reinterpret_cast<std::uintptr_t>(info->si_addr) < kEndOfHandled) siglongjmp(after_fault, 1);
  std::signal(signal, SIG_DFL);
}

[[gnu::noinline]] void touches(std::uintptr_t address) { *reinterpret_cast<volatile int*>(address) = 1; }

TEST_CASE("of a program that goes on after a crash the last crash counts") {
  if (testing::kIsSanitized) return;
  for (const bool is_last_handled : {false, true}) {
    const FlightMemory memory = FlightMemory::make_shared({.rank = 0, .world_size = 1});
    Recorded process(
        memory,
        [=] {
          static std::uintptr_t turn = 0;
          while (turn < 3) {
            if (sigsetjmp(after_fault, 1) == 0) touches(0x10 * turn++);
          }
          if (!is_last_handled) touches(0x200);
          ::raise(SIGKILL);
        },
        recovers);
    const int status = process.wait();
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == (is_last_handled ? SIGKILL : SIGSEGV));
    const std::optional<CrashStack> crash = read_crash(memory);
    REQUIRE(crash);
    CHECK(crash->signal == SIGSEGV);
    CHECK(crash->address == (is_last_handled ? 0x20 : 0x200));
    CHECK(crash->thread.frames.size() > 2);
    CHECK(crash->thread.frames.front().file != "");
  }
}

TEST_CASE("what makes no sense is left out") {
  const FlightMemory memory = FlightMemory::make_shared({.rank = 0, .world_size = 1});
  stacks::CrashSlot& crash = memory.stacks()->crash;
  crash.frames_made = 1'000'000;
  crash.modules_made = 1'000'000;
  std::fill(std::begin(crash.frames), std::end(crash.frames), 5);
  for (stacks::Module& module : crash.modules) {
    module.end = 10;
    std::fill(std::begin(module.path), std::end(module.path), '/');
  }
  CHECK(read_crash(memory)->thread.frames.size() == stacks::kCrashFrames);
  memory.stacks()->header.version = 99;
  CHECK(!read_crash(memory));
}

}  // namespace
}  // namespace lockstep::internal
