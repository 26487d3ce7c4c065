// Compares how long an all-reduce, or another collective, takes with Lockstep, Gloo and MPI, beside copying as many
// bytes:
//   build/bin/bench_all_reduce --ranks 2 --sizes 4,1024,1048576 --json all_reduce.json
//
// One rule for all engines. A repetition: all ranks pass the engine's own barrier; each measures from its return to the
// return of the all-reduce, or of the last of several where they are small; the slowest rank counts. Repetitions come
// in blocks, and the engines take turns block by block, so that a disturbance of the machine meets all of them. While
// one measures, the ranks of the others sleep.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>

#include "bench/engines.h"
#include "bench/summary.h"
#include "bench/worker.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace {

using namespace std::chrono_literals;
using lockstep::Deadline;

constexpr auto kStartTimeout = 120s;
constexpr auto kBlockTimeout = 300s;
constexpr int kProbes = 3;
constexpr double kMinRepetitions = 3;  // in a block
constexpr double kMaxRepetitions = 10'000;
// Small all-reduces follow one another, as in a program: alone, each would be timed with the barrier's echo.
constexpr std::uint64_t kSmallBytes = 64 * 1024;
constexpr int kCallsOfSmall = 20;

struct Options {
  std::vector<std::uint64_t> sizes{4, 1024, 65536, 1048576, 26214400, 104857600};
  std::vector<std::string> engines{"all"};
  bench::EngineSettings engine;
  int rounds = 5;
  double block_seconds = 0.15;
  int iterations = 0;
  int link_mbit = 0;
  std::string json;
};

struct Engine {
  bench::EngineCommand start;
  std::unique_ptr<bench::Worker> worker;
  int repetitions = 0;  // of a block, at the present size
  std::vector<double> seconds;
};

int calls_of(std::uint64_t bytes) { return bytes <= kSmallBytes ? kCallsOfSmall : 1; }

std::vector<double> measure(Engine& engine, std::uint64_t bytes, int repetitions) {
  const std::string command = fmt::format("run {} {} {}", bytes, repetitions, calls_of(bytes));
  return engine.worker->measure(command, Deadline::after(kBlockTimeout));
}

// A barrier takes about as long as a small all-reduce.
int repetitions_for(double seconds_each, std::uint64_t bytes, const Options& options) {
  if (options.iterations > 0) return options.iterations;
  const double seconds = seconds_each * (1 + calls_of(bytes));
  return static_cast<int>(std::clamp(options.block_seconds / seconds, kMinRepetitions, kMaxRepetitions));
}

std::vector<Engine> start_engines(const Options& options) {
  const bool all = std::find(options.engines.begin(), options.engines.end(), "all") != options.engines.end();
  std::vector<Engine> engines;
  for (const bench::EngineCommand& start : bench::engine_commands(options.engines, options.engine)) {
    try {
      auto worker = std::make_unique<bench::Worker>(start.command);
      worker->wait_ready(Deadline::after(kStartTimeout));
      engines.push_back({start, std::move(worker), 0, {}});
    } catch (const lockstep::Error& error) {
      if (!all) throw;
      std::fprintf(stderr, "bench_all_reduce: without %s: %s\n", start.name.c_str(), error.what());
    }
  }
  return engines;
}

void report(const Engine& engine, std::uint64_t bytes, const Options& options, bench::RecordFile& records) {
  const bench::Summary seconds = bench::summarize(engine.seconds);
  const double algbw_gbps = static_cast<double>(bytes) / seconds.p50 / 1e9;
  records.write({{"bench", options.engine.hosts.empty() ? "all_reduce" : "all_reduce_between_hosts"},
                 {"link_mbit", options.link_mbit},
                 {"engine", engine.start.name},
                 {"ranks", engine.start.ranks},
                 {"op", options.engine.operation},
                 {"dtype", options.engine.dtype},
                 {"bytes", bytes},
                 {"iterations", engine.seconds.size()},
                 {"min_us", seconds.min * 1e6},
                 {"p10_us", seconds.p10 * 1e6},
                 {"p50_us", seconds.p50 * 1e6},
                 {"p90_us", seconds.p90 * 1e6},
                 {"algbw_gbps", algbw_gbps}});
  std::printf("%s\n",
              fmt::format("{:>12} {:<16} {:>5} {:>10} {:>14.2f} {:>14.2f} {:>12.3f}", bytes, engine.start.name,
                          engine.start.ranks, engine.seconds.size(), seconds.p50 * 1e6, seconds.p90 * 1e6, algbw_gbps)
                  .c_str());
  std::fflush(stdout);
}

void compare(std::vector<Engine>& engines, std::uint64_t bytes, const Options& options, bench::RecordFile& records) {
  for (Engine& engine : engines) {
    engine.repetitions = repetitions_for(bench::median(measure(engine, bytes, kProbes)), bytes, options);
    engine.seconds.clear();
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (Engine& engine : engines) {
      const std::vector<double> seconds = measure(engine, bytes, engine.repetitions);
      engine.seconds.insert(engine.seconds.end(), seconds.begin(), seconds.end());
    }
  }
  for (const Engine& engine : engines) report(engine, bytes, options, records);
}

void run(const Options& options) {
  bench::RecordFile records(options.json);
  std::vector<Engine> engines = start_engines(options);
  std::printf("%12s %-16s %5s %10s %14s %14s %12s\n", "bytes", "engine", "ranks", "iterations", "p50 us", "p90 us",
              "GB/s");
  for (const std::uint64_t bytes : options.sizes) compare(engines, bytes, options, records);
}

void add_options(CLI::App& app, Options& options) {
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", options.engine.ranks)->check(CLI::Range(1, 1024));
  app.add_option("--sizes", options.sizes, "bytes, multiples of 4")
      ->delimiter(',')
      ->check(CLI::Range(std::uint64_t{4}, std::uint64_t{1} << 40));
  app.add_option(
         "--engines", options.engines,
         "all, native, native-ordinary, python, gloo, mpi, openmpi, mpich, memcpy, memcpy-alone, tcp, tcp-unchecked")
      ->delimiter(',');
  app.add_option("--op", options.engine.operation)
      ->check(CLI::IsMember({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"}));
  app.add_option("--dtype", options.engine.dtype)->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--rounds", options.rounds, "blocks of each engine and size")->check(CLI::Range(1, 10000));
  app.add_option("--block-seconds", options.block_seconds, "about as long as a block takes")
      ->check(CLI::Range(1e-3, 1e6));
  app.add_option("--iterations", options.iterations, "repetitions in a block; 0: as --block-seconds says")
      ->check(CLI::Range(0, 1000000));
  app.add_option("--hosts", options.engine.hosts,
                 "run the ranks there; see on_hosts.py, which makes hosts and says this");
  app.add_option("--link-mbit", options.link_mbit, "how fast the hosts' links are, for the records; 0: not limited");
  app.add_option("--json", options.json, "file for one line per engine and size");
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a worker that ends is an error with a text
  Options options;
  CLI::App app("Compares the collectives of Lockstep, Gloo and MPI on this machine", "bench_all_reduce");
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    for (const std::uint64_t bytes : options.sizes) {
      if (bytes % 4 != 0) {
        throw lockstep::Error(lockstep::ErrorKind::invalid_argument,
                              fmt::format("--sizes: {} is not a multiple of 4, the size of a float32", bytes));
      }
    }
    run(options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_all_reduce: %s\n", error.what());
    return 1;
  }
}
