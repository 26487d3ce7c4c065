// One rank of a test with real processes:
//   flight_worker loop ELEMENTS   all-reduces for ever
//   flight_worker away RANK       three barriers; then that rank computes by itself, and the others call a fourth
//   flight_worker mute RANK       as away, but the others wait for a message of that rank
//   flight_worker early RANK      that rank leaves after three barriers
//   flight_worker skip RANK       that rank skips a barrier between all-reduces
//   flight_worker monitored RANK  that rank does not come to a monitored barrier; then all are in an all-reduce
//   flight_worker sums N          N all-reduces, then the end
//   flight_worker spawn RANK      as away, of three ranks that this program starts; the others give up
// TEST_CALL_MS bounds each call. Every line begins with the rank. A failure is printed as "error <kind> <monotonic
// seconds> <seconds in the call> <text>"; the exit status is then 3.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/job/launch/spawn.h"

namespace {

using lockstep::Error;
using lockstep::World;

lockstep::TimePoint last_call;  // when the newest call began

void say(const std::string& line) {
  const char* rank = std::getenv("RANK");
  const std::string text = fmt::format("{} {}\n", rank == nullptr ? "-" : rank, line);
  if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) std::_Exit(4);
}

void say_error(const Error& error) {
  const auto now = lockstep::steady_clock().now();
  say(fmt::format("error {} {:.6f} {:.6f} {}", to_string(error.kind()), lockstep::seconds(now.time_since_epoch()),
                  lockstep::seconds(now - last_call), error.what()));
}

template <class Call>
void timed(Call call) {
  last_call = lockstep::steady_clock().now();
  call();
}

void sum(const World& world, std::int64_t elements = 1000) {
  const at::Tensor tensor = at::full({elements}, 1.0);
  timed([&] { world.group().all_reduce(tensor); });
  if (tensor[elements - 1].item<double>() != world.size()) std::_Exit(5);
}

[[noreturn]] void compute_for_ever() {
  for (;;) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

void three_barriers(const World& world) {
  for (int i = 0; i < 3; ++i) timed([&] { world.barrier(); });
  say(fmt::format("running {}", ::getpid()));
}

void loop(const World& world, std::int64_t elements) {
  sum(world, elements);
  say(fmt::format("running {}", ::getpid()));
  for (;;) sum(world, elements);
}

void away(const World& world, int rank) {
  three_barriers(world);
  if (world.rank() == rank) compute_for_ever();
  timed([&] { world.barrier(); });
}

void mute(const World& world, int rank) {
  three_barriers(world);
  if (world.rank() == rank) compute_for_ever();
  at::Tensor tensor = at::full({4}, 0.0);
  timed([&] { world.group().recv(tensor, rank, 7); });
}

// It leaves once the others are past the barriers: one that fails in the next ends the group for all.
void early(const World& world, int rank) {
  three_barriers(world);
  at::Tensor word = at::full({1}, 0.0);
  if (world.rank() != rank) {
    world.group().send(word, rank, 7);
    return timed([&] { world.barrier(); });
  }
  for (int other = 0; other < world.size(); ++other) {
    if (other != rank) world.group().recv(word, other, 7);
  }
}

void skip(const World& world, int rank) {
  for (int i = 0; i < 5; ++i) {
    sum(world);
    if (world.rank() != rank || i != 3) timed([&] { world.barrier(); });
  }
}

void monitored(const World& world, int rank) {
  three_barriers(world);
  if (world.rank() != rank) {
    try {
      timed([&] { world.group().monitored_barrier({.timeout = std::chrono::seconds(1)}, true); });
    } catch (const Error& error) {
      say_error(error);
    }
  }
  sum(world);
  say("goes on");
}

void run(const std::string& scenario, std::int64_t number) {
  const char* limit = std::getenv("TEST_CALL_MS");
  lockstep::InitOptions options;
  options.timeout = std::chrono::milliseconds(limit == nullptr ? 30000 : std::atoi(limit));
  const World world = lockstep::init_process_group(options);
  const auto rank = static_cast<int>(number);
  if (scenario == "loop") return loop(world, number);
  if (scenario == "away" || scenario == "spawn") return away(world, rank);
  if (scenario == "mute") return mute(world, rank);
  if (scenario == "early") return early(world, rank);
  if (scenario == "skip") return skip(world, rank);
  if (scenario == "monitored") return monitored(world, rank);
  if (scenario != "sums") throw Error(lockstep::ErrorKind::invalid_argument, "there is no scenario " + scenario);
  for (std::int64_t i = 0; i < number; ++i) sum(world);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "";
  const std::int64_t number = argc > 2 ? std::atoll(argv[2]) : 0;
  try {
    if (scenario == "spawn") {
      lockstep::spawn(argc, argv, [&](int) { run(scenario, number); }, {.nprocs = 3});
    } else {
      run(scenario, number);
    }
    return 0;
  } catch (const Error& error) {
    say_error(error);
  }
  return 3;
}
