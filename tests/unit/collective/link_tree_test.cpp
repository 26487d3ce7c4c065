// Small collectives in trees: what travels, ranks that are late, and how each rank learns who is missing or disagrees
// though it speaks to few.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "tests/support/counting_mesh.h"
#include "tests/support/expect_error.h"
#include "tests/support/sanitized.h"
#include "tests/support/tcp_meshes.h"
#include "tests/unit/collective/link_fixture.h"

namespace link_tree_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

constexpr LinkTuning kInTrees{.small_bytes = 2048,
                              .tree_ranks = 2,
                              .tree_lone_ranks = 2,
                              .announce_after = 20ms,
                              .chunk_bytes = 1024,
                              .window_chunks = 2};
// Whoever has to wait shows itself to all at once.
constexpr LinkTuning kTalkative = [] {
  LinkTuning tuning = kInTrees;
  tuning.announce_after = 0ms;
  return tuning;
}();

Topology in_nodes(int size, int per_node) {
  std::vector<int> node_of;
  for (int rank = 0; rank < size; ++rank) node_of.push_back(rank / per_node);
  return Topology(node_of);
}

Engines make_trees(std::vector<std::unique_ptr<Mesh>> meshes, int per_node, const LinkTuning& tuning) {
  const Topology topology = in_nodes(static_cast<int>(meshes.size()), per_node);
  Engines engines;
  for (auto& mesh : meshes) engines.push_back(std::make_unique<LinkEngine>(std::move(mesh), 7, topology, tuning));
  return engines;
}

Row random_row(std::mt19937& random, int size) {
  constexpr OpKind kKinds[] = {OpKind::all_reduce, OpKind::broadcast, OpKind::all_gather, OpKind::barrier,
                               OpKind::reduce_scatter};
  Row row{.kind = kKinds[random() % std::size(kKinds)], .root = static_cast<int>(random() % unsigned(size))};
  // Half of them small.
  if (row.kind != OpKind::barrier) row.count = random() % (random() % 2 == 0 ? 512 : 3000);
  return row;
}

Error as_error(const std::exception_ptr& exception) {
  return error_of([&] {
    REQUIRE(exception);
    std::rethrow_exception(exception);
  });
}

void barrier(Engine& engine, Duration timeout = 20s) {
  engine.run({.kind = OpKind::barrier}, Deadline::after(timeout));
}

}  // namespace

TEST_CASE("collectives in trees among others, over every mesh, give the same bits") {
  std::mt19937 random(1);
  for (const int per_node : {1, 2, 3, 4}) {
    for (const int size : {2, 3, 5, 8, 9}) {
      if (kIsSanitized && size > 5) continue;
      std::vector<Engines> groups;
      groups.push_back(make_trees(make_arena_meshes(size), per_node, kInTrees));
      groups.push_back(make_trees(make_arena_meshes(size, 512), per_node, kInTrees));
      if (size == 5) groups.push_back(make_trees(make_tcp_meshes(size, 1, per_node), per_node, kInTrees));
      for (Engines& engines : groups) {
        for (int step = 0; step < (kIsSanitized ? 5 : 15); ++step) {
          const Row row = random_row(random, size);
          INFO(to_string(row.kind) << " of " << row.count << " from " << row.root << ", " << size << " ranks, "
                                   << per_node << " on a node");
          CHECK(run_row(engines, row, 3, random) == "");
        }
      }
    }
  }
}

TEST_CASE("in a group of many ranks a small collective takes few messages, by default") {
  const int size = 16;
  std::vector<SentCount> sent(size);
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (auto& mesh : make_arena_meshes(size)) {
    const auto rank = static_cast<std::size_t>(mesh->rank());
    meshes.push_back(std::make_unique<CountingMesh>(std::move(mesh), sent[rank]));
  }
  LinkTuning patient;
  patient.announce_after = 20s;
  Engines engines = make_trees(std::move(meshes), 4, patient);
  std::mt19937 random(2);
  CHECK(run_row(engines, {.count = 100}, 1, random) == "");
  // A leader's own node, and the two that are one and two nodes away; others only tell their leader.
  for (std::size_t rank = 0; rank < size; ++rank) CHECK(sent[rank].times == (rank % 4 == 0 ? 5 : 1));
}

TEST_CASE(
    "ranks that come late, some of them in every round, or show themselves to all at every turn, change nothing") {
  for (const int per_node : {1, 3}) {
    const int size = 7;
    Engines engines = make_trees(make_arena_meshes(size, 256), per_node, kTalkative);
    run_ranks_or_throw(size, [&](int rank) {
      std::mt19937 shared(5), own(static_cast<unsigned>(rank));
      for (int step = 0; step < (kIsSanitized ? 100 : 400); ++step) {
        const std::size_t count = shared() % 2 == 0 ? 5 : 2000;
        if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
        std::vector<std::int32_t> data(count, rank + step);
        const Segment output[] = {{reinterpret_cast<std::byte*>(data.data()), count * 4}};
        engines[static_cast<std::size_t>(rank)]->run(
            {.kind = OpKind::all_reduce, .dtype = DType::i32, .count = count, .output = output}, soon());
        const std::int32_t sum = size * step + size * (size - 1) / 2;
        if (data != std::vector<std::int32_t>(count, sum)) throw std::runtime_error("wrong sum");
      }
    });
  }
}

TEST_CASE("a rank may leave as soon as it is done, though others still wait") {
  for (int time = 0; time < (kIsSanitized ? 20 : 100); ++time) {
    Engines engines = make_trees(make_arena_meshes(7), 1 + time % 3, time % 2 == 0 ? kInTrees : kTalkative);
    run_ranks_or_throw(7, [&](int rank) {
      auto& engine = engines[static_cast<std::size_t>(rank)];
      if (rank == time % 7) std::this_thread::sleep_for(1ms);
      barrier(*engine);
      engine.reset();
    });
  }
}

TEST_CASE("ranks that do not come are named on every rank, and no others are") {
  for (const int per_node : {1, 3}) {
    for (const int absent : {0, 4, 8}) {
      CAPTURE(per_node);
      CAPTURE(absent);
      Engines engines = make_trees(make_arena_meshes(9), per_node, kInTrees);
      const TimePoint start = steady_clock().now();
      const auto errors = run_ranks(9, [&](int rank) {
        Engine& engine = *engines[static_cast<std::size_t>(rank)];
        barrier(engine);
        if (rank != absent) barrier(engine, 400ms);
      });
      const double took = seconds(steady_clock().now() - start);
      CHECK(took >= 0.4);
      CHECK(took < 0.5 + 1.5);  // the promise is 0.5; the rest is for a busy machine
      for (int rank = 0; rank < 9; ++rank) {
        if (rank == absent) continue;
        const Error error = as_error(errors[static_cast<std::size_t>(rank)]);
        CHECK_ERROR(error, ErrorKind::timeout, "barrier #2 failed on rank " + std::to_string(rank),
                    "missing: rank " + std::to_string(absent) + " has not entered it: last seen in barrier #1");
        CHECK_FALSE(contains(error.what(), ";"));
        CHECK(error.detail().peer == absent);
      }
    }
  }
}

TEST_CASE("a deadline that is shorter than the patience of a tree still names who is missing") {
  LinkTuning patient = kInTrees;
  patient.announce_after = 10s;
  Engines engines = make_trees(make_arena_meshes(6), 2, patient);
  const auto errors = run_ranks(6, [&](int rank) {
    if (rank != 3) barrier(*engines[static_cast<std::size_t>(rank)], 300ms);
  });
  for (const std::size_t rank : {0, 1, 2, 4, 5}) {
    CHECK_ERROR(as_error(errors[rank]), ErrorKind::timeout, "missing: rank 3 has not entered it");
  }
}

TEST_CASE("a rank that stops in the middle is named by those who do not speak to it, if it gives no heartbeat") {
  // Asked after a rank, it knows that the last one is silent.
  class FewWords final : public FailureDetector {
   public:
    void ask(int rank) noexcept override { asked[static_cast<std::size_t>(rank)] = true; }
    PeerHealth health(int rank) const override {
      if (!asked[static_cast<std::size_t>(rank)]) return {};
      if (rank == 7) return {.silent = 200ms, .state = "silent for 0.2 s"};
      return {.state = "alive"};
    }
    std::array<bool, 8> asked{};
  };
  auto meshes = make_arena_meshes(8);
  Mesh& half_dead = *meshes[7];
  std::array<FewWords, 7> detectors;
  Engines engines;
  for (std::size_t rank = 0; rank < 7; ++rank) {
    engines.push_back(std::make_unique<LinkEngine>(std::move(meshes[rank]), 0, in_nodes(8, 2), kInTrees));
    engines.back()->set_failure_detector(&detectors[rank]);
  }
  Signature signature = signature_of({.kind = OpKind::barrier}, 1, 0);
  signature.check = check_of(signature);
  for (int rank = 0; rank < 7; ++rank) half_dead.send_some(rank, std::as_bytes(std::span(&signature, 1)));
  const auto errors = run_ranks(7, [&](int rank) { barrier(*engines[static_cast<std::size_t>(rank)], 300ms); });
  for (const auto& error : errors) {
    CHECK_ERROR(as_error(error), ErrorKind::timeout, "missing: rank 7 has ", ": silent for 0.2 s");
    CHECK(as_error(error).detail().peer == 7);
    CHECK_FALSE(contains(as_error(error).what(), ";"));
  }
}

TEST_CASE("ranks in different collectives all learn of it, whether in a tree or not, and no data is touched") {
  struct Case {
    const char* what;
    OpKind kind;
    std::size_t count;
    const char* text;
  };
  const Case cases[] = {{"another in the tree", OpKind::all_gather, 30, "all_gather #2 of 30 float32"},
                        {"another size", OpKind::all_reduce, 31, "all_reduce(sum) #2 of 31 float32"},
                        {"one outside of it", OpKind::all_reduce, 4000, "all_reduce(sum) #2 of 4000 float32"},
                        {"a barrier", OpKind::barrier, 0, "barrier #2"}};
  for (const Case& each : cases) {
    for (const int odd : {0, 1, 8}) {
      CAPTURE(each.what);
      CAPTURE(odd);
      Engines engines = make_trees(make_arena_meshes(9), 3, kInTrees);
      std::vector<char> untouched(9, 0);
      const auto errors = run_ranks(9, [&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        barrier(*engines[r]);
        const OpKind kind = rank == odd ? each.kind : OpKind::all_reduce;
        const std::size_t count = rank == odd ? each.count : 30;
        std::vector<float> input(count, 0.5F), output(kind == OpKind::all_gather ? 9 * count : count, 0.5F);
        const Segment from[] = {{reinterpret_cast<std::byte*>(input.data()), input.size() * 4}};
        const Segment to[] = {{reinterpret_cast<std::byte*>(output.data()), output.size() * 4}};
        Collective collective{.kind = kind, .dtype = DType::f32, .count = count};
        if (kind == OpKind::all_gather) collective.input = from;
        if (kind != OpKind::barrier) collective.output = to;
        try {
          engines[r]->run(collective, soon());
        } catch (...) {
          untouched[r] = std::ranges::all_of(output, [](float value) { return value == 0.5F; });
          engines[r].reset();  // as a program that ends
          throw;
        }
      });
      for (int rank = 0; rank < 9; ++rank) {
        const Error error = as_error(errors[static_cast<std::size_t>(rank)]);
        CHECK_ERROR(error, ErrorKind::desync, each.text, "all_reduce(sum) #2 of 30 float32",
                    "rank " + std::to_string(odd) + " in ", "rank " + std::to_string(rank) + " in ");
        CHECK(untouched[static_cast<std::size_t>(rank)] == 1);
      }
    }
  }
}

TEST_CASE("a rank that leaves instead of coming is named to all, and an abort reaches all") {
  for (const bool aborts : {false, true}) {
    Engines engines = make_trees(make_arena_meshes(9), 3, kInTrees);
    const auto errors = run_ranks(9, [&](int rank) {
      auto& engine = engines[static_cast<std::size_t>(rank)];
      barrier(*engine);
      if (rank != 5) return barrier(*engine);
      if (aborts) engine->abort("the loss is NaN");
      if (!aborts) engine.reset();
    });
    for (int rank = 0; rank < 9; ++rank) {
      if (rank == 5) continue;
      const Error error = as_error(errors[static_cast<std::size_t>(rank)]);
      if (aborts) CHECK_ERROR(error, ErrorKind::aborted, "rank 5 ended the group: the loss is NaN");
      if (!aborts) CHECK_ERROR(error, ErrorKind::peer_lost, "rank 5 has left");
    }
  }
}

}  // namespace link_tree_test
