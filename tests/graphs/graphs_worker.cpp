// One rank, a process, of random cases that all ranks play:
//   graphs_worker FIRST COUNT
// plays the seeds from FIRST, with as many ranks as there are, and prints "RANK same COUNT over TRANSPORT" or, of the
// first case that differs, "RANK seed S, ..." with the case. Every process computes by hand what all ranks would have.
#include <ATen/Parallel.h>

#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>

#include "lockstep/base/format.h"
#include "lockstep/comm/group/world.h"
#include "tests/graphs/check.h"
#include "tests/graphs/generate.h"
#include "tests/graphs/reference.h"
#include "tests/graphs/run_ddp.h"

namespace {

using namespace lockstep::testing;

void say(int rank, const std::string& line) {
  std::printf("%d %s\n", rank, line.c_str());
  std::fflush(stdout);
}

std::optional<std::string> failure_of(const Case& one, const lockstep::World& world) {
  const auto expected = run_by_hand(one);
  try {
    const Trace found = run_ddp(one, world.group());
    return difference(found, expected[static_cast<std::size_t>(world.rank())], world.rank(), tolerance_of(one));
  } catch (const std::exception& error) {
    return fmt::format("rank {} threw: {}", world.rank(), error.what());
  }
}

int play_all(std::uint64_t first, std::uint64_t count, const lockstep::World& world) {
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Case one = generate(seed);
    if (one.mode.shards != 0 && !std::has_single_bit(static_cast<unsigned>(world.size()))) one.mode.shards = 0;
    one.mode.ranks = world.size();
    if (one.mode.shards == 0 && one.schedule[0].kind == StepKind::sharded) continue;
    one.mode.shards = one.mode.shards == 0 ? 0 : std::max(one.mode.shards, world.size());
    const auto failure = failure_of(one, world);
    if (!failure) continue;
    say(world.rank(), fmt::format("seed {}, {}\n{}", seed, *failure, to_text(one)));
    return 1;
  }
  say(world.rank(), fmt::format("same {} over {}", count, world.group().transport()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    at::set_num_threads(1);
    lockstep::InitOptions options;
    options.timeout = std::chrono::seconds(20);
    const auto world = lockstep::init_process_group(options);
    return play_all(std::strtoull(argv[1], nullptr, 10), std::strtoull(argv[2], nullptr, 10), world);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "graphs_worker: %s\n", error.what());
    return 1;
  }
}
