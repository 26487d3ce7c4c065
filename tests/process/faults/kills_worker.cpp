// What kills_test.py kills: kills_worker STEPS WORKERS
// Joins, forks WORKERS children as a loader does, and all-reduces STEPS times; every tenth step splits the group.
// Prints "joining", "joined", "done" or "error <kind> <text>". TEST_JOIN_MS and TEST_CALL_MS bound joining and each
// call.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/world.h"

namespace {

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

lockstep::Duration milliseconds_of(const char* variable) {
  const char* text = std::getenv(variable);
  return std::chrono::milliseconds(text == nullptr ? 20000 : std::atoi(text));
}

// Lives for as long as its parent, as the workers of a loader do.
void fork_worker() {
  const pid_t parent = ::getpid();
  if (::fork() != 0) return;
  while (::getppid() == parent) ::usleep(20'000);
  ::_exit(0);
}

void work(int steps, int workers) {
  lockstep::InitOptions options;
  options.join_timeout = milliseconds_of("TEST_JOIN_MS");
  options.timeout = milliseconds_of("TEST_CALL_MS");
  say("joining");
  const lockstep::World world = lockstep::init_process_group(options);
  say("joined");
  for (int worker = 0; worker < workers; ++worker) fork_worker();
  for (int step = 0; step < steps; ++step) {
    const at::Tensor value = at::full({1000}, static_cast<double>(world.rank() + step));
    world.group().all_reduce(value);
    if (step % 10 == 9) world.group().split(0, world.rank()).value().barrier();
  }
  say("done");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    work(argc > 1 ? std::atoi(argv[1]) : 1, argc > 2 ? std::atoi(argv[2]) : 0);
    return 0;
  } catch (const lockstep::Error& error) {
    say("error " + std::string(to_string(error.kind())) + " " + error.what());
    return 3;
  }
}
