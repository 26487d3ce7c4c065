// One rank, a process, of random sequences that all ranks play:
//   sequences_worker FIRST COUNT
// plays the seeds from FIRST, with as many ranks as there are, and prints "RANK same COUNT over TRANSPORT" or, of the
// first sequence that differs, "RANK seed S, ..." with the sequence. Every process has a model of what all ranks have.
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "lockstep/base/format.h"
#include "lockstep/comm/group/world.h"
#include "tests/sequences/check.h"
#include "tests/sequences/draw.h"
#include "tests/sequences/oracle.h"
#include "tests/sequences/play.h"
#include "tests/sequences/shorten.h"

namespace {

using namespace lockstep::sequences;

void say(int rank, const std::string& line) {
  std::printf("%d %s\n", rank, line.c_str());
  std::fflush(stdout);
}

int play_all(std::uint64_t first, std::uint64_t count, const lockstep::World& world) {
  const char* names = std::getenv("LOCKSTEP_TEST_FAMILIES");
  const std::uint64_t families = families_of(names == nullptr ? "all" : names);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Sequence one = draw(seed, families, world.size());
    try {
      play(one, expected_of(one), world.group());
    } catch (const Unclear&) {
    } catch (...) {
      const std::string text = text_of(std::current_exception());
      say(world.rank(), fmt::format("seed {}, {}\n{}", seed, text, to_text(without_idle_events(one))));
      return 1;
    }
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
    std::fprintf(stderr, "sequences_worker: %s\n", error.what());
    return 1;
  }
}
