#include "bench/startup.h"

#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "bench/programs.h"
#include "bench/worker.h"
#include "lockstep/base/format.h"

namespace bench {
namespace {

using namespace std::chrono_literals;

constexpr auto kStartTimeout = 120s;

struct Way {
  std::string name;
  int ranks = 1;
  int programs = 1;  // how many are started at once
  std::vector<std::string> command;
  std::vector<double> seconds;
};

std::vector<Way> ways_of(int ranks) {
  const std::string count = std::to_string(ranks);
  const std::vector<std::string> load{built_program("bench_load_torch")};
  const std::vector<std::string> spawn{built_program("bench_collective_worker"), "native", count};
  std::vector<std::string> run{built_program("lockstep"), "run", "--no-prefix", "--nproc-per-node", count};
  run.insert(run.end(), spawn.begin(), spawn.end());
  std::vector<Way> ways{{"load-libtorch", 1, 1, load, {}},
                        {"load-libtorch", ranks, ranks, load, {}},
                        {"lockstep-run", ranks, 1, run, {}},
                        {"lockstep-spawn", ranks, 1, spawn, {}}};
  if (exists(python())) {
    ways.push_back({"pytorch-fork", ranks, 1, {python(), script("torch_worker.py"), count, "gloo"}, {}});
    ways.push_back({"pytorch-torchrun",
                    ranks,
                    1,
                    {python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count,
                     script("torch_worker.py")},
                    {}});
  }
  return ways;
}

double time_one(const Way& way) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < way.programs; ++i) workers.push_back(std::make_unique<Worker>(way.command));
  for (const auto& worker : workers) worker->wait_ready(lockstep::Deadline::after(kStartTimeout));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void measure_startup(int ranks, int repetitions, RecordFile& records) {
  std::vector<Way> ways = ways_of(ranks);
  for (Way& way : ways) time_one(way);  // so that all files are in memory
  for (int i = 0; i < repetitions; ++i) {
    for (Way& way : ways) way.seconds.push_back(time_one(way));
  }
  std::printf("%-18s %5s %12s %12s\n", "start-up", "ranks", "min ms", "p50 ms");
  for (const Way& way : ways) {
    const Summary seconds = summarize(way.seconds);
    records.write({{"bench", "startup"},
                   {"engine", way.name},
                   {"ranks", way.ranks},
                   {"repetitions", way.seconds.size()},
                   {"min_ms", seconds.min * 1e3},
                   {"p50_ms", seconds.p50 * 1e3},
                   {"p90_ms", seconds.p90 * 1e3}});
    std::puts(fmt::format("{:<18} {:>5} {:>12.1f} {:>12.1f}", way.name, way.ranks, seconds.min * 1e3, seconds.p50 * 1e3)
                  .c_str());
  }
}

}  // namespace bench
