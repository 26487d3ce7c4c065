// One rank of a job that hangs or crashes:
//   hang_worker away RANK     two sums; then that rank sleeps, and the others call a third
//   hang_worker once RANK     as away in the first attempt; the next ends well
//   hang_worker compute RANK  that rank computes for TEST_SECONDS before its third sum
//   hang_worker child RANK    as compute, but a child of that rank does it
//   hang_worker queue RANK    a worker of that rank waits for ever in a function of the program, main() in the library
//   hang_worker circle -      ranks 0 and 1 call the barriers of two groups in different orders
//   hang_worker crash RANK    that rank uses an address that is not there; "abort", "nothing" and "throw" instead: it
//                             aborts, calls a function that is not there, or throws what nobody catches;
//                             "chain" as throw, after terminate handlers that go on to each other
// Every rank prints "running <pid>" before the last sum.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/uncaught.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/comm/store/memory_store.h"
#include "lockstep/train/data/prefetcher.h"

// Names that the tests find in stacks.
[[gnu::noinline]] void sleeps_for_ever() {
  for (;;) std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

[[gnu::noinline]] void computes_for(std::chrono::seconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) asm volatile("");
}

[[gnu::noinline]] void falls_over(volatile int* address) {
  *address = 1;
  std::puts("not reached");
}

[[gnu::noinline]] void gives_up() {
  std::abort();
  std::puts("not reached");
}

[[gnu::noinline]] int takes_from_queue() {
  std::mutex mutex;
  std::condition_variable filled;
  std::unique_lock lock(mutex);
  filled.wait(lock, [] { return false; });
  return 1;
}

[[gnu::noinline]] void throws_boom() { throw std::runtime_error("boom"); }

[[gnu::noinline]] void calls_nothing() {
  void (*volatile function)() = nullptr;
  function();
  std::puts("not reached");
}

namespace {

std::chrono::seconds test_seconds() {
  const char* text = std::getenv("TEST_SECONDS");
  return std::chrono::seconds(text == nullptr ? 5 : std::atoi(text));
}

void leave_it_to_a_child() {
  const pid_t child = ::fork();
  if (child == 0) {
    computes_for(test_seconds());
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
}

void call_apart(const lockstep::World& world) {
  const auto a = world.new_group({0, 1});
  const auto b = world.new_group({0, 1});
  std::printf("running %d\n", ::getpid());
  (world.rank() == 0 ? a : b)->barrier();
  (world.rank() == 0 ? b : a)->barrier();
}

void wait_beside_worker() {
  lockstep::internal::Prefetcher<int> items(1, 1, 1, [](std::size_t) { return takes_from_queue(); });
  lockstep::MemoryStore().get("the item", lockstep::Deadline::never());
}

std::terminate_handler handler_before = nullptr;

void on_end() {
  std::fputs("hang_worker: my handler\n", stderr);
  handler_before();
}

// The handlers are then what a second World makes of them.
void throw_with_handlers(const lockstep::World& world) {
  handler_before = std::set_terminate(on_end);
  const lockstep::internal::UncaughtWatch again(world.group());
  throws_boom();
}

void act(const std::string& scenario, const lockstep::World& world) {
  const char* restarts = std::getenv("RESTART_COUNT");
  const bool is_first = restarts == nullptr || std::string(restarts) == "0";
  if (scenario == "away" || (scenario == "once" && is_first)) sleeps_for_ever();
  if (scenario == "compute") computes_for(test_seconds());
  if (scenario == "child") leave_it_to_a_child();
  if (scenario == "crash") falls_over(reinterpret_cast<int*>(0x30));
  if (scenario == "abort") gives_up();
  if (scenario == "nothing") calls_nothing();
  if (scenario == "throw") throws_boom();
  if (scenario == "chain") throw_with_handlers(world);
  if (scenario == "queue") wait_beside_worker();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "";
  const int actor = argc > 2 ? std::atoi(argv[2]) : -1;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    const lockstep::World world = lockstep::init_process_group();
    if (scenario == "circle") {
      call_apart(world);
      return 0;
    }
    double value = 1;
    for (int i = 0; i < 2; ++i) world.all_reduce(value);
    std::printf("running %d\n", ::getpid());
    if (world.rank() == actor) act(scenario, world);
    world.all_reduce(value);
    return 0;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "hang_worker: %s\n", error.what());
    return 3;
  }
}
