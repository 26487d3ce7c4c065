// One suite over every Engine: what a collective means, and what happens when ranks disagree, are late, or end.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/contract/engine/operands.h"
#include "tests/support/rank_threads.h"
#include "tests/support/sanitized.h"

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

#if defined(__SANITIZE_THREAD__)  // every byte of a copy is checked one by one
constexpr std::size_t kCounts[] = {0, 1, 4, 100, 1000, 20'001};
constexpr std::size_t kMostForAll = 10'000;
#else
constexpr std::size_t kCounts[] = {0, 1, 4, 100, 3000, 65'537, 700'001};
constexpr std::size_t kMostForAll = 100'000;
#endif

void all_reduce_grid(Kind kind, int ranks, DType dtype, ReduceOp op) {
  Engines engines = make_engines(ranks, kind.over);
  for (const std::size_t count : kCounts) {
    // One dtype is enough to cross chunks; under a sanitizer all of them would take minutes.
    if (count > kMostForAll && (dtype != DType::f32 || op != ReduceOp::avg)) continue;
    std::vector<Buffer> before(static_cast<std::size_t>(ranks));
    std::vector<Buffer> after(static_cast<std::size_t>(ranks));
    run_ranks_or_throw(ranks, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      Operand operand(*engines[r], kind.place, dtype, count, rank);
      before[r] = operand.copy();
      const Segment segment = operand.segment();
      Collective c{.kind = OpKind::all_reduce, .reduce = op, .dtype = dtype, .count = count, .output = {&segment, 1}};
      engines[r]->run(c, soon());
      after[r] = operand.copy();
    });
    const Buffer expected = reduced(before, dtype, op);
    for (int rank = 0; rank < ranks; ++rank) {
      INFO(kind.name << ", " << ranks << " ranks, " << to_string(dtype) << ", " << to_string(op) << ", count " << count
                     << ", rank " << rank);
      CHECK(after[static_cast<std::size_t>(rank)] == expected);
    }
  }
}

std::string message_of(const std::exception_ptr& error, ErrorKind kind) {
  REQUIRE(error);
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    CHECK_MESSAGE(e.kind() == kind, e.what());
    return e.what();
  }
  return "";
}

Collective all_reduce_of(const Segment& segment, std::uint64_t count) {
  return {.kind = OpKind::all_reduce, .dtype = DType::f32, .count = count, .output = {&segment, 1}};
}

}  // namespace

// feature: C-02, C-04
TEST_CASE("all_reduce: every dtype and operation, any size, equals the reduction in rank order") {
  for (const Kind& kind : kKinds) {
    for (const DType dtype : kReducible) {
      for (const ReduceOp op : kReductions) {
        if (supports(op, dtype)) all_reduce_grid(kind, 2, dtype, op);
      }
    }
    for (const int ranks : {1, 3, 4, 5}) all_reduce_grid(kind, ranks, DType::f32, ReduceOp::avg);
  }
}

// feature: C-01
TEST_CASE("broadcast, all_gather and reduce_scatter move what they say") {
  for (const int variant : {1, 2, 3, 4, 11, 12, 13, 14, 23, 24, 25, 26}) {
    const int ranks = variant % 10;
    Engines engines = make_engines(ranks, std::array{Over::arena, Over::links, Over::nodes}[variant / 10U]);
    const auto n = static_cast<std::size_t>(ranks);
    for (const std::size_t count : kCounts) {
      std::vector<Buffer> sources(n);
      std::vector<Buffer> gathered(n);
      std::vector<Buffer> scattered(n);
      std::vector<Buffer> whole(n);
      const int root = ranks - 1;
      std::vector<Buffer> sent(n);
      run_ranks_or_throw(ranks, [&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        Operand mine(*engines[r], Place::ordinary, DType::f32, count, rank);
        Operand all(*engines[r], Place::ordinary, DType::f32, count * n, rank + 100);
        sources[r] = mine.copy();
        const Segment input = mine.segment();
        const Segment output = all.segment();
        whole[r] = all.copy();
        engines[r]->run({.kind = OpKind::reduce_scatter,
                         .dtype = DType::f32,
                         .count = count,
                         .input = {&output, 1},
                         .output = {&input, 1}},
                        soon());
        scattered[r] = mine.copy();
        Operand again(*engines[r], Place::ordinary, DType::f32, count, rank);
        const Segment source = again.segment();
        engines[r]->run({.kind = OpKind::all_gather,
                         .dtype = DType::f32,
                         .count = count,
                         .input = {&source, 1},
                         .output = {&output, 1}},
                        soon());
        gathered[r] = all.copy();
        engines[r]->run(
            {.kind = OpKind::broadcast, .dtype = DType::f32, .root = root, .count = count, .output = {&source, 1}},
            soon());
        sent[r] = again.copy();
      });
      const Buffer sum = reduced(whole, DType::f32, ReduceOp::sum);
      Buffer joined(n * count * 4);
      for (std::size_t r = 0; r < n; ++r)
        std::copy(sources[r].begin(), sources[r].end(), joined.data() + r * count * 4);
      for (std::size_t r = 0; r < n; ++r) {
        INFO(ranks << " ranks, count " << count << ", rank " << r);
        CHECK(gathered[r] == joined);
        CHECK(sent[r] == sources[static_cast<std::size_t>(root)]);
        REQUIRE(scattered[r].size() == count * 4);
        CHECK(std::equal(scattered[r].begin(), scattered[r].end(), sum.data() + r * count * 4));
      }
    }
  }
}

TEST_CASE("a random sequence of collectives in odd pieces stays correct") {
  const int ranks = 3;
  Engines engines = make_engines(ranks);
  run_ranks_or_throw(ranks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::mt19937 shared(7);                                // the same choices on all ranks
    std::mt19937 own(static_cast<unsigned>(rank) + 1000);  // where this rank cuts its operand
    for (int step = 0; step < 200; ++step) {
      const std::size_t count = shared() % 5 == 0 ? shared() % 400'000 : shared() % 3000;
      const bool in_arena = own() % 2 == 0;
      Operand operand(*engines[r], in_arena ? Place::arena : Place::ordinary, DType::f32, count, rank + step);
      std::vector<Buffer> rows;
      for (int peer = 0; peer < ranks; ++peer) {
        rows.push_back(Operand(*engines[r], Place::ordinary, DType::f32, count, peer + step).copy());
      }
      std::vector<Segment> pieces;
      for (std::size_t at = 0; at < count;) {
        const std::size_t length = std::min<std::size_t>(count - at, own() % (count / 3 + 1) + 1);
        pieces.push_back({operand.segment().data + at * 4, length * 4});
        at += length;
      }
      engines[r]->run({.kind = OpKind::all_reduce, .dtype = DType::f32, .count = count, .output = pieces}, soon());
      if (operand.copy() != reduced(rows, DType::f32, ReduceOp::sum)) throw std::runtime_error("wrong sum");
      if (step % 10 == 0) engines[r]->run({}, soon());
    }
  });
}

TEST_CASE("posted all-reduces finish in order, whoever looks in when") {
  constexpr int kRanks = 3, kPosted = 40;  // more than may be unfinished at a time
  constexpr std::size_t kCount = 20'000;
  for (const Kind& kind : kKinds) {
    INFO(kind.name);
    Engines engines = make_engines(kRanks, kind.over);
    run_ranks_or_throw(kRanks, [&](int rank) {
      Engine& engine = *engines[static_cast<std::size_t>(rank)];
      for (int round = 0; round < (kIsSanitized ? 1 : 5); ++round) {
        std::vector<std::unique_ptr<Operand>> operands;
        std::uint64_t last = 0;
        for (int i = 0; i < kPosted; ++i) {
          operands.push_back(std::make_unique<Operand>(engine, kind.place, DType::f32, kCount, rank + i));
          const Segment segment = operands.back()->segment();
          last = engine.post(all_reduce_of(segment, kCount), soon());
          if ((i + rank) % 3 == 0) engine.poll();
        }
        engine.wait(last, soon());
        CHECK(engine.poll());
        for (int i = 0; i < kPosted; ++i) {
          std::vector<Buffer> rows;
          for (int peer = 0; peer < kRanks; ++peer)
            rows.push_back(Operand(engine, Place::ordinary, DType::f32, kCount, peer + i).copy());
          if (operands[static_cast<std::size_t>(i)]->copy() != reduced(rows, DType::f32, ReduceOp::sum))
            throw std::runtime_error("wrong sum");
        }
        engine.run({}, soon());
      }
    });
  }
}

TEST_CASE("what a posted collective works on is held until it is finished, and no longer") {
  for (const Kind& kind : kKinds) {
    INFO(kind.name);
    Engines engines = make_engines(2, kind.over);
    run_ranks_or_throw(2, [&](int rank) {
      Engine& engine = *engines[static_cast<std::size_t>(rank)];
      auto operand = std::make_shared<Operand>(engine, kind.place, DType::f32, 20'000, rank);
      const std::weak_ptr<Operand> watched = operand;
      const Segment segment = operand->segment();
      const std::uint64_t number = engine.post(all_reduce_of(segment, 20'000), soon(), std::move(operand));
      if (rank == 0) CHECK_FALSE(watched.expired());
      engine.wait(number, soon());
      CHECK(watched.expired());
    });
  }
}

// feature: C-15
TEST_CASE("ranks in different collectives all get both signatures, and no data is touched") {
  struct Row {
    const char* name;
    Collective other;
    const char* words;
  };
  const Row rows[] = {
      {"count", {.kind = OpKind::all_reduce, .dtype = DType::f32, .count = 5}, "of 5 float32"},
      {"dtype", {.kind = OpKind::all_reduce, .dtype = DType::i32, .count = 4}, "of 4 int32"},
      {"operation",
       {.kind = OpKind::all_reduce, .reduce = ReduceOp::max, .dtype = DType::f32, .count = 4},
       "all_reduce(max)"},
      {"kind", {.kind = OpKind::broadcast, .dtype = DType::f32, .count = 4}, "broadcast"},
      {"name", {.kind = OpKind::all_reduce, .dtype = DType::f32, .count = 4, .name = 0xabc}, "abc"},
      {"large", {.kind = OpKind::all_reduce, .dtype = DType::f32, .count = 900'000}, "of 900000 float32"},
  };
  for (const Kind& kind : kTransports)
    for (const Row& row : rows) {
      Engines engines = make_engines(3, kind.over);
      std::vector<Buffer> before(3);
      std::vector<Buffer> after(3);
      const auto errors = run_ranks(3, [&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        Operand operand(*engines[r], Place::ordinary, DType::f32, std::max<std::size_t>(row.other.count, 8), rank);
        before[r] = operand.copy();
        Collective c = rank == 1 ? row.other : Collective{.kind = OpKind::all_reduce, .dtype = DType::f32, .count = 4};
        const Segment segment{operand.segment().data, c.count * 4};
        c.output = {&segment, 1};
        try {
          engines[r]->run(c, soon());
        } catch (...) {
          after[r] = operand.copy();
          throw;
        }
      });
      for (std::size_t r = 0; r < 3; ++r) {
        INFO(kind.name << ", " << row.name << " on rank " << r);
        const std::string text = message_of(errors[r], ErrorKind::desync);
        CHECK(text.find(row.words) != std::string::npos);
        CHECK(text.find("rank 1") != std::string::npos);
        CHECK(text.find("all_reduce(sum) #1 of 4 float32") != std::string::npos);
        CHECK(after[r] == before[r]);
      }
    }
}

TEST_CASE("a scan, what is scanned without the own rank, and other reductions are different collectives") {
  constexpr std::pair<OpKind, OpKind> kPairs[] = {{OpKind::scan, OpKind::all_reduce},
                                                  {OpKind::scan, OpKind::exclusive_scan},
                                                  {OpKind::exclusive_scan, OpKind::scan},
                                                  {OpKind::exclusive_scan, OpKind::all_reduce}};
  for (const Kind& kind : kTransports) {
    for (const auto& [usual, other] : kPairs) {
      for (const std::uint64_t count : {4, 70'000}) {
        Engines engines = make_engines(3, kind.over);
        const auto errors = run_ranks(3, [&](int rank) {
          std::vector<float> input(count, 1), output(count, 2);
          const Segment from{reinterpret_cast<std::byte*>(input.data()), count * 4};
          const Segment to{reinterpret_cast<std::byte*>(output.data()), count * 4};
          Collective c{.kind = rank == 1 ? other : usual, .dtype = DType::f32, .count = count, .output = {&to, 1}};
          if (!traits_of(c.kind).is_in_place()) c.input = {&from, 1};
          try {
            engines[static_cast<std::size_t>(rank)]->run(c, soon());
          } catch (...) {
            CHECK(output == std::vector<float>(count, 2));
            throw;
          }
        });
        for (std::size_t r = 0; r < 3; ++r) {
          INFO(kind.name << " on rank " << r);
          const std::string text = message_of(errors[r], ErrorKind::desync);
          const std::string of = "(sum) #1 of " + std::to_string(count) + " float32";
          CHECK(text.find(' ' + std::string(to_string(usual)) + of) != std::string::npos);
          CHECK(text.find("rank 1 in " + std::string(to_string(other)) + of) != std::string::npos);
        }
      }
    }
  }
}

TEST_CASE("a scan gives each rank what was reduced up to it, of any size, in any pieces") {
  for (const Kind& kind : kKinds) {
    for (const int ranks : {1, 2, 3, 4, 5}) {
      Engines engines = make_engines(ranks, kind.over);
      for (const std::size_t count : kCounts) {
        std::vector<Buffer> rows, scanned(static_cast<std::size_t>(ranks)), before(scanned);
        for (int rank = 0; rank < ranks; ++rank) {
          rows.push_back(Operand(*engines[0], Place::ordinary, DType::f32, count, rank).copy());
        }
        run_ranks_or_throw(ranks, [&](int rank) {
          const auto r = static_cast<std::size_t>(rank);
          const Operand input(*engines[r], kind.place, DType::f32, count, rank);
          const Operand output(*engines[r], kind.place, DType::f32, count, 99);
          const std::size_t cut = count / 3 * 4;  // elsewhere on each rank
          const auto pieces = [&](const Segment& whole, std::size_t at) {
            return std::vector<Segment>{{whole.data, at}, {whole.data + at, 0}, {whole.data + at, whole.bytes - at}};
          };
          const auto from = pieces(input.segment(), cut / (r + 1) / 4 * 4), to = pieces(output.segment(), cut);
          Collective c{.kind = OpKind::scan, .dtype = DType::f32, .count = count, .input = from, .output = to};
          engines[r]->run(c, soon());
          scanned[r] = output.copy();
          c.kind = OpKind::exclusive_scan;
          engines[r]->run(c, soon());
          before[r] = output.copy();
          if (input.copy() != rows[r]) throw std::runtime_error("an input was written");
        });
        std::vector<Buffer> up_to;
        for (std::size_t r = 0; r < rows.size(); ++r) {
          INFO(kind.name << ", " << ranks << " ranks, count " << count << ", rank " << r);
          CHECK(before[r] == (r == 0 ? Buffer(count * 4) : reduced(up_to, DType::f32, ReduceOp::sum)));
          up_to.push_back(rows[r]);
          CHECK(scanned[r] == reduced(up_to, DType::f32, ReduceOp::sum));
        }
      }
    }
  }
}

TEST_CASE("a timeout names the missing rank and where it was last") {
  Engines engines = make_engines(3);
  const auto start = std::chrono::steady_clock::now();
  const auto errors = run_ranks(3, [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    engine.run({}, soon());
    if (rank != 2) engine.run({}, Deadline::after(1s));
  });
  CHECK(std::chrono::steady_clock::now() - start < 10s);
  CHECK_FALSE(errors[2]);
  for (const std::size_t r : {0U, 1U}) {
    const std::string text = message_of(errors[r], ErrorKind::timeout);
    CHECK(text.find("barrier #2 timed out") != std::string::npos);
    CHECK(text.find("missing: rank 2: last seen in barrier #1") != std::string::npos);
  }
  // The group stays failed, also for the rank that was late.
  CHECK_THROWS_WITH_AS(engines[2]->run({}, soon()), doctest::Contains("missing: rank 2"), Error);
}

TEST_CASE("a rank that leaves is named to those who wait for it") {
  Engines engines = make_engines(3);
  const auto errors = run_ranks(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    engines[r]->run({}, soon());
    if (rank == 1) {
      engines[r].reset();
    } else {
      engines[r]->run({}, soon());
    }
  });
  for (const std::size_t r : {0U, 2U}) {
    const std::string text = message_of(errors[r], ErrorKind::peer_lost);
    CHECK(text.find("rank 1 has left the group") != std::string::npos);
    CHECK(text.find("barrier #2") != std::string::npos);
  }
}

TEST_CASE("abort ends a waiting peer at once and quotes the reason") {
  for (const Kind& kind : kTransports) {
    Engines engines = make_engines(2, kind.over);
    const auto start = std::chrono::steady_clock::now();
    const auto errors = run_ranks(2, [&](int rank) {
      if (rank == 0) engines[0]->run({}, soon());
      if (rank == 1) engines[1]->abort("loss is NaN");
    });
    CHECK(std::chrono::steady_clock::now() - start < 10s);  // its own deadline is after 20 s
    CHECK(message_of(errors[0], ErrorKind::aborted).find("loss is NaN") != std::string::npos);
  }
}

TEST_CASE("wrong arguments are refused before anyone hears of them, and the engine lives on") {
  for (const Kind& kind : kTransports) {
    Engines engines = make_engines(2, kind.over);
    run_ranks_or_throw(2, [&](int rank) {
      Engine& engine = *engines[static_cast<std::size_t>(rank)];
      float value = 1;
      const Segment segment{reinterpret_cast<std::byte*>(&value), 4};
      if (rank == 0) CHECK_THROWS_AS(engine.run(all_reduce_of(segment, 2), soon()), Error);
      engine.run(all_reduce_of(segment, 1), soon());
      CHECK(value == 2);
    });
  }
}
