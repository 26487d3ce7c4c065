#include "lockstep/collective/chunk_plan.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

using namespace lockstep;

namespace {

constexpr LinkTuning kTuning{.small_bytes = 256, .chunk_bytes = 64, .window_chunks = 2};
constexpr std::uint64_t kCounts[] = {0, 1, 2, 63, 64, 65, 100, 257, 1000, 65537};
constexpr OpKind kKinds[] = {OpKind::all_reduce, OpKind::broadcast, OpKind::all_gather, OpKind::reduce_scatter,
                             OpKind::barrier};

Collective make(OpKind kind, std::uint64_t count, int root) {
  return {.kind = kind, .dtype = DType::f32, .root = root, .count = count};
}

std::size_t bytes_sent(const Collective& c, int rank, int size) {
  std::size_t bytes = 0;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const LinkPlan link = plan_link(c, rank, size, peer, kTuning);
    bytes += link.send_operand.bytes() + link.send_result.bytes();
  }
  return bytes;
}

// Calls `check` for every kind, count, number of ranks and, for a broadcast, root.
template <class Check>
void for_all(Check check) {
  for (const OpKind kind : kKinds) {
    for (const std::uint64_t count : kCounts) {
      for (int size = 1; size <= 9; ++size) {
        for (int root = 0; root < (kind == OpKind::broadcast ? size : 1); ++root) {
          CAPTURE(to_string(kind));
          CAPTURE(count);
          CAPTURE(size);
          CAPTURE(root);
          check(make(kind, count, root), size);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("what one rank sends is what the other expects") {
  for_all([](const Collective& c, int size) {
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        if (from == to) continue;
        const LinkPlan sender = plan_link(c, from, size, to, kTuning);
        const LinkPlan receiver = plan_link(c, to, size, from, kTuning);
        CHECK(sender.send_operand.bytes() + sender.send_result.bytes() ==
              plan_chunks(c, to, size, kTuning).row_bytes + receiver.receive.bytes());
      }
    }
  });
}

TEST_CASE("every byte of the output is produced exactly once") {
  for_all([](const Collective& c, int size) {
    if (c.kind == OpKind::barrier) return;
    for (int rank = 0; rank < size; ++rank) {
      if (c.kind == OpKind::broadcast && rank == c.root) continue;
      const std::size_t part = c.count * 4;
      std::vector<int> written(c.kind == OpKind::all_gather ? part * static_cast<std::size_t>(size) : part);
      const auto mark = [&](ByteRange range) {
        REQUIRE(range.begin <= range.end);
        REQUIRE(range.end <= written.size());
        for (std::size_t i = range.begin; i < range.end; ++i) ++written[i];
      };
      const ChunkPlan plan = plan_chunks(c, rank, size, kTuning);
      if (plan.row_bytes != 0) mark(plan.result);
      if (c.kind == OpKind::all_gather) {  // the own part is copied
        mark({part * static_cast<std::size_t>(rank), part * static_cast<std::size_t>(rank + 1)});
      }
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) mark(plan_link(c, rank, size, peer, kTuning).receive);
      }
      CHECK(written == std::vector<int>(written.size(), 1));
    }
  });
}

TEST_CASE("rows, operands and results have the same length and hold whole elements") {
  for_all([](const Collective& c, int size) {
    for (int rank = 0; rank < size; ++rank) {
      const ChunkPlan plan = plan_chunks(c, rank, size, kTuning);
      CHECK(plan.own.bytes() == plan.row_bytes);
      CHECK(plan.result.bytes() == plan.row_bytes);
      CHECK(plan.row_bytes % 4 == 0);
      CHECK(plan.own.begin % 4 == 0);
    }
  });
}

TEST_CASE("a large all_reduce sends 2(n-1)/n of the data from every rank, a large broadcast at most the data") {
  for (int size = 2; size <= 9; ++size) {
    CAPTURE(size);
    const std::uint64_t count = std::uint64_t{64} * 5 * 7 * 8 * 9;  // divides evenly
    const std::size_t bytes = count * 4;
    const auto n = static_cast<std::size_t>(size);
    for (int rank = 0; rank < size; ++rank) {
      CHECK(bytes_sent(make(OpKind::all_reduce, count, 0), rank, size) == 2 * (n - 1) * bytes / n);
      CHECK(bytes_sent(make(OpKind::broadcast, count, 1), rank, size) <= bytes);
      CHECK(bytes_sent(make(OpKind::all_gather, count, 0), rank, size) == (n - 1) * bytes);
      CHECK(bytes_sent(make(OpKind::reduce_scatter, count, 0), rank, size) == (n - 1) * bytes);
    }
  }
}

TEST_CASE("small data travel behind the signature") {
  CHECK(plan_chunks(make(OpKind::all_reduce, 64, 0), 1, 4, kTuning).whole);
  CHECK_FALSE(plan_chunks(make(OpKind::all_reduce, 65, 0), 1, 4, kTuning).whole);
  CHECK(plan_chunks(make(OpKind::broadcast, 64, 1), 1, 4, kTuning).whole);
  CHECK_FALSE(plan_chunks(make(OpKind::broadcast, 64, 1), 0, 4, kTuning).whole);
  CHECK_FALSE(plan_chunks(make(OpKind::reduce_scatter, 1, 0), 0, 4, kTuning).whole);
}
