// What the checks of an all-reduce cost: the flight recorder and the deadline, by running with and without them in
// turn; the signature, which nothing goes without, by timing alone what is done for it.
//   build/bin/bench_checks [--blocks N] [--json FILE]
// Ranks are two threads that share an arena as processes do; operands lie in it. No torch.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bench/summary.h"
#include "lockstep/base/format.h"
#include "lockstep/base/observe/flight_recorder.h"
#include "lockstep/base/tsc_clock.h"
#include "lockstep/comm/collective/arena_engine.h"

namespace {

using namespace lockstep;
using namespace lockstep::internal;

constexpr int kRanks = 2;
constexpr double kBlockSeconds = 0.005;
constexpr std::size_t kSizes[] = {4, 1024, 65536, 1048576, 16777216};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One rank, with all checks or with as few as can be.
class Rank {
 public:
  explicit Rank(std::unique_ptr<Arena> arena)
      : recorder_(FlightMemory::make_shared({})),
        log_(recorder_, "bench", arena->rank(), kRanks),
        engine_(std::move(arena)),
        operand_(static_cast<std::byte*>(engine_.heap()->allocate(std::ranges::max(kSizes)))) {
    std::memset(operand_, 0, std::ranges::max(kSizes));
  }
  ~Rank() { engine_.heap()->deallocate(operand_); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Seconds for one all-reduce.
  double run(bool with_checks, std::size_t bytes, int calls) {
    engine_.set_flight_log(with_checks ? log_ : FlightLog());
    const Segment segment{operand_, bytes};
    const Collective collective{
        .kind = OpKind::all_reduce, .dtype = DType::f32, .count = bytes / sizeof(float), .output = {&segment, 1}};
    engine_.run({}, Deadline::never());
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < calls; ++call) {
      engine_.run(collective,
                  with_checks ? Deadline::after(std::chrono::minutes(30), coarse_clock()) : Deadline::never());
    }
    return seconds_since(start) / calls;
  }

 private:
  FlightRecorder recorder_;
  const FlightLog log_;
  ArenaEngine engine_;
  std::byte* const operand_;
};

struct Cost {
  std::size_t bytes = 0;
  bench::Summary checked, bare, difference;  // seconds; the difference is that of neighbours
};

std::vector<Cost> time_engines(int blocks) {
  auto arenas = make_local_arenas(kRanks);
  std::vector<Cost> costs;
  const auto rank = [&](std::size_t number) {
    Rank self(std::move(arenas[number]));
    for (const std::size_t bytes : kSizes) {
      // As many calls on every rank: both know only the size.
      const int calls = std::max(1, static_cast<int>(kBlockSeconds / (0.5e-6 + static_cast<double>(bytes) * 1e-10)));
      std::vector<double> checked, bare, difference;
      self.run(true, bytes, calls);
      for (int block = 0; block < blocks; ++block) {
        for (const bool with_checks : {block % 2 == 0, block % 2 != 0}) {
          (with_checks ? checked : bare).push_back(self.run(with_checks, bytes, calls));
        }
        difference.push_back(checked.back() - bare.back());
      }
      if (number == 0) {
        costs.push_back({bytes, bench::summarize(checked), bench::summarize(bare), bench::summarize(difference)});
      }
    }
  };
  {
    std::vector<std::jthread> ranks;
    for (std::size_t number = 0; number < kRanks; ++number) ranks.emplace_back(rank, number);
  }
  return costs;
}

// Seconds that one rank needs to make its signature, to write it down, and to compare every other rank's with it.
bench::Summary time_signatures(int blocks) {
  constexpr int kCalls = 200000;
  std::vector<Signature> slots(64);
  std::vector<double> seconds;
  std::uint64_t differences = 0;
  for (int block = 0; block < blocks; ++block) {
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < kCalls; ++call) {
      const auto sequence = static_cast<std::uint64_t>(call);
      const Collective collective{.kind = OpKind::all_reduce, .dtype = DType::f32, .count = sequence};
      const Signature mine = signature_of(collective, sequence, 1);
      std::memcpy(&slots[sequence % slots.size()], &mine, sizeof mine);
      for (int peer = 1; peer < kRanks; ++peer) {
        const Signature& theirs = slots[(sequence + static_cast<std::uint64_t>(peer)) % slots.size()];
        differences += std::memcmp(&theirs, &mine, sizeof mine) != 0 ? 1 : 0;
      }
    }
    seconds.push_back(seconds_since(start) / kCalls);
  }
  return differences == 0 ? bench::Summary() : bench::summarize(seconds);  // uses the sum, so that it is computed
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What the checks of an all-reduce cost: recorder, deadline and signature");
  std::string json;
  int blocks = 101;
  app.add_option("--json", json, "file for one line per size");
  app.add_option("--blocks", blocks, "of all-reduces, with checks and without")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    bench::RecordFile records(json);
    const bench::Summary signature = time_signatures(blocks);
    std::printf("%10s %12s %12s %16s %14s %8s\n", "bytes", "checked us", "bare us", "recorder, dl us", "signature us",
                "share");
    for (const Cost& cost : time_engines(blocks)) {
      const double checks = cost.difference.p50 + signature.p50;
      const double share = checks / cost.checked.p50;
      std::puts(fmt::format("{:>10} {:>12.3f} {:>12.3f} {:>16.3f} {:>14.3f} {:>7.2f}%", cost.bytes,
                            cost.checked.p50 * 1e6, cost.bare.p50 * 1e6, cost.difference.p50 * 1e6, signature.p50 * 1e6,
                            share * 100)
                    .c_str());
      records.write({{"bench", "checks"},
                     {"bytes", cost.bytes},
                     {"ranks", kRanks},
                     {"blocks", blocks},
                     {"checked_us", cost.checked.p50 * 1e6},
                     {"bare_us", cost.bare.p50 * 1e6},
                     {"difference_us", cost.difference.p50 * 1e6},
                     {"difference_p10_us", cost.difference.p10 * 1e6},
                     {"difference_p90_us", cost.difference.p90 * 1e6},
                     {"signature_us", signature.p50 * 1e6},
                     {"checks_us", checks * 1e6},
                     {"share", share}});
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_checks: %s\n", error.what());
    return 1;
  }
}
