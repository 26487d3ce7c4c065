// What ranks are told of each other's mistakes, and what they can do afterwards, on all engines.
#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/observe/process_recorder.h"
#include "tests/contract/engine/operands.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"
#include "tests/support/rank_threads.h"

namespace recovery_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

constexpr int kRanks = 5;

Error error_in(const std::exception_ptr& thrown) {
  REQUIRE(thrown);
  return error_of([&] { std::rethrow_exception(thrown); });
}

// An all-reduce of so many ones; whether each rank has its sum.
void sum_ones(Engine& engine, std::size_t count) {
  std::vector<float> ones(count, 1);
  const Segment segment{reinterpret_cast<std::byte*>(ones.data()), count * sizeof(float)};
  engine.run({.kind = OpKind::all_reduce, .dtype = DType::f32, .count = count, .output = {&segment, 1}}, soon());
  for (const float each : ones) {
    if (each != static_cast<float>(engine.size())) throw std::runtime_error("a wrong sum");
  }
}

// As sum_ones(), under a name.
void sum_named(Engine& engine, std::size_t count, const std::string& name, std::uint64_t number = 0) {
  std::vector<float> ones(count, 1);
  const Segment segment{reinterpret_cast<std::byte*>(ones.data()), count * sizeof(float)};
  engine.run({.kind = OpKind::all_reduce,
              .dtype = DType::f32,
              .count = count,
              .name = note_name(name),
              .number = number,
              .output = {&segment, 1}},
             soon());
}

}  // namespace

// fault: 28
// feature: C-07, C-15
TEST_CASE("after different calls all ranks know all sides, whatever had been sent, and later calls say so again") {
  // Large ones have sent megabytes before they learn of it; one of 6 elements is small in every engine.
  for (const Kind& kind : kTransports) {
    for (const std::size_t count : {std::size_t{6}, std::size_t{700'000}}) {
      INFO(kind.name << ", " << count << " elements");
      Engines engines = make_engines(kRanks, kind.over);
      const auto errors = run_ranks(kRanks, [&](int rank) {
        Engine& engine = *engines[static_cast<std::size_t>(rank)];
        sum_ones(engine, count);
        const Error error = error_of([&] { sum_ones(engine, rank == 3 ? count + 1 : count); });
        for (int again = 0; again < 2; ++again) {
          CHECK_ERROR(error_of([&] { sum_ones(engine, 3); }), ErrorKind::desync, error.what());
        }
        throw error;
      });
      for (int rank = 0; rank < kRanks; ++rank) {
        const std::string others = rank == 0   ? "with rank 0: 1, 2, 4"
                                   : rank == 3 ? "with rank 0: 1, 2, 4"
                                               : "with rank";
        CHECK_ERROR(error_in(errors[static_cast<std::size_t>(rank)]), ErrorKind::desync,
                    "ranks are in different collectives: rank " + std::to_string(rank) + " in ",
                    "rank 3 in all_reduce(sum) #2 of " + std::to_string(count + 1) + " float32",
                    "in all_reduce(sum) #2 of " + std::to_string(count) + " float32", others);
      }
    }
  }
}

TEST_CASE("a rank that comes late with another call finds the others in the middle of their data, and all know both") {
  constexpr std::size_t kCount = 1'500'000;
  for (const Kind& kind : kTransports) {
    CAPTURE(std::string(kind.name));
    const Engines engines = make_engines(2, kind.over);
    std::atomic<bool> has_begun{false};
    run_ranks_or_throw(2, [&](int rank) {
      Engine& engine = *engines[static_cast<std::size_t>(rank)];
      const std::size_t count = kCount + static_cast<std::size_t>(rank);
      std::vector<float> mine(count, 1), all(2 * count);
      const Segment input{reinterpret_cast<std::byte*>(mine.data()), mine.size() * sizeof(float)};
      const Segment output{reinterpret_cast<std::byte*>(all.data()), all.size() * sizeof(float)};
      while (rank == 1 && !has_begun) std::this_thread::yield();
      has_begun = true;
      CHECK_ERROR(error_of([&] {
                    engine.run({.kind = OpKind::all_gather,
                                .dtype = DType::f32,
                                .count = count,
                                .input = {&input, 1},
                                .output = {&output, 1}},
                               soon());
                  }),
                  ErrorKind::desync, "rank 0 in all_gather", "rank 1 in all_gather");
    });
  }
}

TEST_CASE("a call that succeeds clears what failed on a rank before") {
  for (const Kind& kind : kTransports) {
    INFO(kind.name);
    Engines engines = make_engines(3, kind.over);
    const auto errors = run_ranks(3, [&](int rank) {
      Engine& engine = *engines[static_cast<std::size_t>(rank)];
      engine.failure_note()->note("backward of my model", "index 9 is out of range");
      sum_ones(engine, 4);
      sum_ones(engine, rank == 1 ? 5 : 4);
    });
    for (const auto& error : errors) {
      CHECK_ERROR(error_in(error), ErrorKind::desync, "rank 1 in ");
      CHECK_FALSE(contains(error_in(error).what(), "before that"));
    }
  }
}

TEST_CASE("different calls are told by name, with what failed on a rank before") {
  for (const Kind& kind : kTransports) {
    INFO(kind.name);
    Engines engines = make_engines(3, kind.over);
    const auto errors = run_ranks(3, [&](int rank) {
      Engine& engine = *engines[static_cast<std::size_t>(rank)];
      sum_named(engine, 4, "gradient bucket 0 (fc.weight) of backward", 17);
      if (rank == 2) engine.failure_note()->note("backward of my model", "index 9 is out of range\nand a stack");
      sum_named(engine, 4, "gradient bucket 0 (fc.weight) of backward", rank == 2 ? 19 : 18);
    });
    for (const auto& error : errors) {
      CHECK_ERROR(error_in(error), ErrorKind::desync, "gradient bucket 0 (fc.weight) of backward 18",
                  "rank 2 in all_reduce(sum) #2 of 4 float32, gradient bucket 0 (fc.weight) of backward 19",
                  "before that, rank 2 failed in backward of my model: index 9 is out of range");
      CHECK_FALSE(contains(error_in(error).what(), "and a stack"));
    }
  }
}

// fault: 33
// feature: K-04
TEST_CASE("a rank that leaves early is named with the counts of both sides, and what to do") {
  for (const Kind& kind : kTransports) {
    INFO(kind.name);
    Engines engines = make_engines(3, kind.over);
    std::barrier all(3);
    const auto errors = run_ranks(3, [&](int rank) {
      auto& engine = engines[static_cast<std::size_t>(rank)];
      for (int i = 0; i < 46; ++i) sum_ones(*engine, 4);
      all.arrive_and_wait();
      if (rank == 1) {
        engine.reset();
      } else {
        sum_ones(*engine, 4);
      }
    });
    for (const std::size_t rank : {0U, 2U}) {
      CHECK_ERROR(error_in(errors[rank]), ErrorKind::peer_lost, "rank 1 has left the group after 46 collectives",
                  "all_reduce(sum) #47 of 4 float32", "Every rank must make this call", "join()");
    }
  }
}

TEST_CASE("a rank that leaves because something failed is named with that") {
  for (const Kind& kind : kTransports) {
    for (const int collectives : {0, 2}) {
      INFO(kind.name);
      CAPTURE(collectives);
      Engines engines = make_engines(3, kind.over);
      std::barrier all(3);
      const auto errors = run_ranks(3, [&](int rank) {
        auto& engine = engines[static_cast<std::size_t>(rank)];
        for (int i = 0; i < collectives; ++i) sum_ones(*engine, 4);
        all.arrive_and_wait();
        if (rank == 1) {
          engine->failure_note()->note("loop of my program", "index 9 is out of range");
          engine.reset();
        } else {
          sum_ones(*engine, 4);
        }
      });
      for (const std::size_t rank : {0U, 2U}) {
        CHECK_ERROR(error_in(errors[rank]), ErrorKind::peer_lost, "rank 1 has left the group",
                    "; before that, rank 1 failed in loop of my program: index 9 is out of range");
      }
    }
  }
}

TEST_CASE("who waits for long says in the log for whom, and how that rank fares; then more rarely") {
  Engines engines = make_engines(2);
  for (auto& engine : engines) engine->set_first_report(20ms);
  const std::string line =
      "all_reduce(sum) #2 of 4 float32 has waited 0 s for: rank 1: last seen in all_reduce(sum) #1";
  const CapturedLog log;
  run_ranks_or_throw(2, [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    sum_ones(engine, 4);
    if (rank == 1) log.await(line);
    sum_ones(engine, 4);
  });
}

}  // namespace recovery_test
