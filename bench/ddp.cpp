// Compares the training steps of Lockstep's DistributedDataParallel with PyTorch's over Gloo, and with as many
// processes that train without communicating:
//   build/bin/bench_ddp --models resnet18,mlp,gpt --ranks 2 --steps 40 --json ddp.json
//
// A step is zero_grad, forward, loss, backward and SGD with momentum, on the same random batch each time, one thread a
// rank. The engines take turns, a block of steps each; while one trains, the ranks of the others sleep.
#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/programs.h"
#include "bench/startup.h"
#include "bench/summary.h"
#include "bench/worker.h"
#include "lockstep/base/format.h"

namespace {

using namespace std::chrono_literals;
using lockstep::Deadline;

constexpr auto kStartTimeout = 180s;
constexpr auto kBlockTimeout = 600s;
constexpr int kWarmUpSteps = 3;

struct Options {
  std::vector<std::string> models{"resnet18", "mlp", "gpt"};
  std::vector<int> batches;  // for every model; empty: the model's own
  int ranks = 2;
  int steps = 40;
  int rounds = 5;
  int startup_repetitions = 0;
  std::string json;
};

const std::map<std::string, std::vector<int>> kBatches{{"resnet18", {64}}, {"mlp", {64, 8}}, {"gpt", {8}}};

struct Engine {
  std::string name;
  std::unique_ptr<bench::Worker> worker;
  std::vector<double> seconds;        // of all steps
  std::vector<double> block_medians;  // one a round
};

std::vector<Engine> start_engines(const std::string& model, int batch, int ranks) {
  std::vector<Engine> engines;
  const auto start = [&](const std::string& name, std::vector<std::string> command) {
    engines.push_back({name, std::make_unique<bench::Worker>(std::move(command)), {}, {}});
    engines.back().worker->wait_ready(Deadline::after(kStartTimeout));
  };
  const std::string program = bench::built_program("bench_train_worker");
  const std::string size = std::to_string(batch);
  const std::string count = std::to_string(ranks);
  start("lockstep", {program, "ddp", model, size, count});
  start("lockstep-mode", {program, "lockstep-mode", model, size, count});
  start("unconnected", {program, "unconnected", model, size, count});
  if (bench::exists(bench::python())) {
    const std::vector<std::string> reference{bench::python(),
                                             bench::script("reference/ddp.py"),
                                             "--driven",
                                             "--model",
                                             model,
                                             "--batch",
                                             size,
                                             "--ranks",
                                             count};
    start("pytorch", reference);
    if (bench::exists(bench::own_backend())) {
      std::vector<std::string> own = bench::with_own_backend(reference);
      own.insert(own.end(), {"--backend", "lockstep"});
      start("pytorch-on-lockstep", own);
    }
    std::vector<std::string> alone = reference;
    alone.push_back("--unconnected");
    start("pytorch-unconnected", alone);
  }
  return engines;
}

void run_block(Engine& engine, int steps) {
  const std::vector<double> seconds =
      engine.worker->measure(fmt::format("go {}", steps), Deadline::after(kBlockTimeout));
  engine.seconds.insert(engine.seconds.end(), seconds.begin(), seconds.end());
  engine.block_medians.push_back(bench::median(seconds));
}

// Step time of one engine over another's: the median over rounds, since blocks of one round met the same machine.
double ratio(const Engine& engine, const Engine& other) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < engine.block_medians.size(); ++i) {
    ratios.push_back(engine.block_medians[i] / other.block_medians[i]);
  }
  return bench::median(std::move(ratios));
}

void report(const std::vector<Engine>& engines, const std::string& model, int batch, int ranks,
            bench::RecordFile& records) {
  for (const Engine& engine : engines) {
    const bench::Summary seconds = bench::summarize(engine.seconds);
    const double samples_per_second = ranks * batch / seconds.p50;
    nlohmann::ordered_json ratios;
    for (const Engine& other : engines) {
      if (&other != &engine) ratios[other.name] = ratio(engine, other);
    }
    records.write({{"bench", "ddp"},
                   {"engine", engine.name},
                   {"model", model},
                   {"batch", batch},
                   {"ranks", ranks},
                   {"steps", engine.seconds.size()},
                   {"p10_ms", seconds.p10 * 1e3},
                   {"p50_ms", seconds.p50 * 1e3},
                   {"p90_ms", seconds.p90 * 1e3},
                   {"samples_per_second", samples_per_second},
                   {"step_time_over", ratios}});
    std::puts(fmt::format("{:<10} {:>5} {:>5}  {:<20} {:>9.2f} {:>9.2f} {:>9.2f} {:>10.0f} {:>12.3f}", model, batch,
                          ranks, engine.name, seconds.p10 * 1e3, seconds.p50 * 1e3, seconds.p90 * 1e3,
                          samples_per_second, ratio(engine, engines.front()))
                  .c_str());
  }
  std::fflush(stdout);
}

void compare(const std::string& model, int batch, const Options& options, bench::RecordFile& records) {
  std::vector<Engine> engines = start_engines(model, batch, options.ranks);
  for (Engine& engine : engines) {
    engine.worker->measure(fmt::format("go {}", kWarmUpSteps), Deadline::after(kBlockTimeout));
  }
  const int steps = (options.steps + options.rounds - 1) / options.rounds;
  for (int round = 0; round < options.rounds; ++round) {
    for (Engine& engine : engines) run_block(engine, steps);
  }
  report(engines, model, batch, options.ranks, records);
}

void run(const Options& options) {
  bench::RecordFile records(options.json);
  std::printf("%-10s %5s %5s  %-20s %9s %9s %9s %10s %12s\n", "model", "batch", "ranks", "engine", "p10 ms", "p50 ms",
              "p90 ms", "samples/s", "x lockstep");
  for (const std::string& model : options.models) {
    for (const int batch : options.batches.empty() ? kBatches.at(model) : options.batches) {
      compare(model, batch, options, records);
    }
  }
  if (options.startup_repetitions > 0) {
    bench::measure_startup(options.ranks, options.startup_repetitions, records);
  }
}

void add_options(CLI::App& app, Options& options) {
  app.option_defaults()->always_capture_default();
  app.add_option("--models", options.models, "resnet18, mlp, gpt, or none")
      ->delimiter(',')
      ->check(CLI::IsMember({"resnet18", "mlp", "gpt", "none"}));
  app.add_option("--batches", options.batches,
                 "samples a rank, for each model; default: 64 for resnet18, 64 and 8 for "
                 "mlp, 8 sequences of 128 for gpt")
      ->delimiter(',')
      ->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--ranks", options.ranks)->check(CLI::Range(1, 1024));
  app.add_option("--steps", options.steps, "of each engine")->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--rounds", options.rounds, "blocks in which the steps come")->check(CLI::Range(1, 10000));
  app.add_option("--startup", options.startup_repetitions, "also time so many starts in each way")
      ->check(CLI::Range(0, 1000));
  app.add_option("--json", options.json, "file for one line per engine, model and batch");
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a worker that ends is an error with a text
  Options options;
  CLI::App app("Compares training with Lockstep to PyTorch's DDP over Gloo on this machine", "bench_ddp");
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    std::erase(options.models, "none");
    run(options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_ddp: %s\n", error.what());
    return 1;
  }
}
