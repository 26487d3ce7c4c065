#include "lockstep/comm/collective/link_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace link_plan_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr LinkTuning kTuning{
    .small_bytes = 256, .tree_ranks = 100, .tree_lone_ranks = 100, .chunk_bytes = 64, .window_chunks = 2};
constexpr std::uint64_t kCounts[] = {0, 1, 2, 63, 64, 65, 100, 257, 1000, 65537};
constexpr OpKind kKinds[] = {OpKind::all_reduce,     OpKind::reduce,  OpKind::broadcast, OpKind::all_gather,
                             OpKind::reduce_scatter, OpKind::barrier, OpKind::scan,      OpKind::exclusive_scan};

Collective make(OpKind kind, std::uint64_t count, int root) {
  return {.kind = kind, .dtype = DType::f32, .root = root, .count = count};
}

ReductionPlan reduction(const Collective& c, int rank, const Topology& topology) {
  ReductionPlan plan;
  plan_reduction(c, rank, topology, route_of(c, topology, kTuning), kTuning, plan);
  return plan;
}

LinkPlan link(const Collective& c, int rank, const Topology& topology, int peer) {
  LinkPlan plan;
  plan_link(c, rank, topology, peer, route_of(c, topology, kTuning), kTuning, plan);
  return plan;
}

std::size_t row_bytes(const ReductionPlan& plan, int peer) {
  const bool sends = (peer >= plan.first_row && peer < plan.end_row) || peer == plan.carried_from;
  return sends ? bytes_of(plan.own) : 0;
}

std::size_t bytes_sent(const Collective& c, int rank, const Topology& topology, int peer) {
  std::size_t bytes = reduction(c, rank, topology).whole ? data_bytes(c) : 0;
  for (const SendRange& each : link(c, rank, topology, peer).send) bytes += each.range.bytes();
  return bytes;
}

std::size_t bytes_sent(const Collective& c, int rank, const Topology& topology) {
  std::size_t bytes = 0;
  for (int peer = 0; peer < topology.size(); ++peer) {
    if (peer != rank) bytes += bytes_sent(c, rank, topology, peer);
  }
  return bytes;
}

std::size_t bytes_received(const Collective& c, int rank, const Topology& topology, int peer) {
  std::size_t bytes = row_bytes(reduction(c, rank, topology), peer);
  for (const ByteRange& range : link(c, rank, topology, peer).receive) bytes += range.bytes();
  return bytes;
}

std::vector<Topology> topologies() {
  std::vector<Topology> all;
  for (int size = 1; size <= 9; ++size) all.emplace_back(size);
  for (const std::vector<int>& node_of : std::vector<std::vector<int>>{
           {0, 0, 1, 1}, {0, 0, 1}, {0, 1, 1}, {0, 0, 0, 1, 1, 1, 2, 2, 2}, {5, 5, 2, 2, 2, 9}, {0, 1, 0, 1}}) {
    all.emplace_back(node_of);
  }
  return all;
}

// Calls `check` for every kind, count, topology and, where there is one, root.
template <class Check>
void for_all(Check check) {
  const auto every = topologies();
  for (const OpKind kind : kKinds) {
    for (const std::uint64_t count : kCounts) {
      for (const Topology& topology : every) {
        const bool rooted = kind == OpKind::broadcast || kind == OpKind::reduce;
        for (int root = 0; root < (rooted ? topology.size() : 1); ++root) {
          CAPTURE(to_string(kind));
          CAPTURE(count);
          CAPTURE(topology.size());
          CAPTURE(topology.nodes());
          CAPTURE(root);
          check(make(kind, count, root), topology);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("a topology knows its nodes and lanes") {
  const Topology topology({7, 7, 7, 3, 3});
  CHECK(topology.is_hierarchical());
  CHECK(topology.nodes() == 2);
  CHECK(topology.lanes() == 2);
  CHECK(topology.lane(2) == 2);
  CHECK(topology.node(3) == 1);
  CHECK(topology.first(1) == 3);
  CHECK_FALSE(topology.is_even());
  for (const auto& flat : {Topology(3), Topology({1, 1, 1}), Topology({0, 1, 0}), Topology({4, 5, 6}), Topology(0)}) {
    CHECK_FALSE(flat.is_hierarchical());
    CHECK(flat.nodes() == flat.size());
  }
}

TEST_CASE("what one rank sends is what the other expects") {
  for_all([](const Collective& c, const Topology& topology) {
    for (int from = 0; from < topology.size(); ++from) {
      for (int to = 0; to < topology.size(); ++to) {
        if (from != to) CHECK(bytes_sent(c, from, topology, to) == bytes_received(c, to, topology, from));
      }
    }
  });
}

TEST_CASE("every byte of the output is produced exactly once") {
  for_all([](const Collective& c, const Topology& topology) {
    if (c.kind == OpKind::barrier) return;
    for (int rank = 0; rank < topology.size(); ++rank) {
      const bool rooted = c.kind == OpKind::broadcast || c.kind == OpKind::reduce;
      if (rooted && (c.kind == OpKind::broadcast) == (rank == c.root)) continue;
      const std::size_t part = c.count * 4;
      std::vector<ByteRange> written;
      const auto mark = [&](ByteRange range) {
        REQUIRE(range.begin <= range.end);
        if (range.bytes() != 0) written.push_back(range);
      };
      const ReductionPlan plan = reduction(c, rank, topology);
      mark({plan.kept_at, plan.kept_at + plan.kept.bytes()});
      if (c.kind == OpKind::all_gather) {  // the own part is copied
        mark({part * static_cast<std::size_t>(rank), part * static_cast<std::size_t>(rank + 1)});
      }
      for (int peer = 0; peer < topology.size(); ++peer) {
        if (peer == rank) continue;
        for (const ByteRange& range : link(c, rank, topology, peer).receive) mark(range);
      }
      std::ranges::sort(written, {}, &ByteRange::begin);
      std::size_t end = 0;
      for (const ByteRange& range : written) {
        CHECK(range.begin == end);
        end = range.end;
      }
      CHECK(end == (c.kind == OpKind::all_gather ? part * static_cast<std::size_t>(topology.size()) : part));
    }
  });
}

TEST_CASE("what a rank passes on is what it gets, and every element is reduced with every rank's once") {
  for_all([](const Collective& c, const Topology& topology) {
    std::vector<std::size_t> rows(static_cast<std::size_t>(topology.size()));
    for (int rank = 0; rank < topology.size(); ++rank) {
      const ReductionPlan plan = reduction(c, rank, topology);
      for (const ByteRange& range : plan.own) {
        CHECK(range.begin % 4 == 0);
        CHECK(range.bytes() % 4 == 0);
      }
      if (plan.carried_to >= 0) CHECK(reduction(c, plan.carried_to, topology).carried_from == rank);
      for (int row = plan.first_row; row < plan.end_row; ++row) {
        rows[static_cast<std::size_t>(row)] += bytes_of(plan.own);
      }
      // Each byte that is reduced is kept, or goes to one rank.
      std::vector<ByteRange> reduced;
      add(reduced, plan.kept);
      for (int peer = 0; peer < topology.size(); ++peer) {
        if (peer == rank) continue;
        for (const SendRange& each : link(c, rank, topology, peer).send) {
          if (each.ready == SendRange::Ready::as_reduced) add(reduced, each.range);
          if (each.ready == SendRange::Ready::as_kept) CHECK(each.range.begin == plan.kept_at);
          if (each.ready != SendRange::Ready::as_received) continue;
          bool found = false;
          for (const ByteRange& range : link(c, rank, topology, each.from).receive) {
            found = found || (range.begin == each.range.begin && range.end == each.range.end);
          }
          CHECK(found);
        }
      }
      std::ranges::sort(reduced, {}, &ByteRange::begin);
      std::size_t end = 0;
      for (const ByteRange& range : reduced) {
        CHECK(range.begin == end);
        end = range.end;
      }
      CHECK(end == bytes_of(plan.own));
    }
    if (c.kind == OpKind::reduce_scatter) {
      for (const std::size_t bytes : rows) CHECK(bytes == rows.size() * c.count * 4);
    }
    if (c.kind == OpKind::scan || c.kind == OpKind::exclusive_scan) {  // by those behind it
      for (std::size_t row = 0; row < rows.size(); ++row) {
        CHECK(rows[row] == (rows.size() - row - (c.kind == OpKind::scan ? 0 : 1)) * c.count * 4);
      }
    }
    if (c.kind == OpKind::all_reduce || c.kind == OpKind::reduce) {
      const bool everywhere = c.kind == OpKind::all_reduce && c.count * 4 <= kTuning.small_bytes;
      const std::size_t copies = everywhere ? rows.size() : 1;
      for (const std::size_t bytes : rows) CHECK(bytes == copies * c.count * 4);
    }
  });
}

TEST_CASE("a large all_reduce sends 2(n-1)/n of the data from every rank, a large broadcast at most the data") {
  for (int size = 2; size <= 9; ++size) {
    CAPTURE(size);
    const Topology flat(size);
    const std::uint64_t count = std::uint64_t{64} * 5 * 7 * 8 * 9;  // divides evenly
    const std::size_t bytes = count * 4;
    const auto n = static_cast<std::size_t>(size);
    for (int rank = 0; rank < size; ++rank) {
      CHECK(bytes_sent(make(OpKind::all_reduce, count, 0), rank, flat) == 2 * (n - 1) * bytes / n);
      CHECK(bytes_sent(make(OpKind::broadcast, count, 1), rank, flat) <= bytes);
      CHECK(bytes_sent(make(OpKind::all_gather, count, 0), rank, flat) == (n - 1) * bytes);
      CHECK(bytes_sent(make(OpKind::reduce_scatter, count, 0), rank, flat) == (n - 1) * bytes);
    }
  }
}

TEST_CASE("between two nodes large data cross once in each direction, however many ranks they have") {
  for (const int per_node : {2, 3, 4}) {
    std::vector<int> node_of(static_cast<std::size_t>(2 * per_node));
    for (int rank = per_node; rank < 2 * per_node; ++rank) node_of[static_cast<std::size_t>(rank)] = 1;
    const Topology topology(node_of);
    const auto crossing = [&](OpKind kind, std::uint64_t count, int from) {
      std::size_t bytes = 0;
      for (int rank = 0; rank < topology.size(); ++rank) {
        for (int peer = 0; peer < topology.size(); ++peer) {
          if (topology.node(rank) == from && topology.node(peer) != from) {
            bytes += bytes_sent(make(kind, count, 0), rank, topology, peer);
          }
        }
      }
      return bytes;
    };
    for (const int from : {0, 1}) {
      CHECK(crossing(OpKind::all_reduce, 10'000, from) == 40'000);
      CHECK(crossing(OpKind::all_gather, 1000, from) == 4000 * static_cast<std::size_t>(per_node));
      CHECK(crossing(OpKind::broadcast, 10'000, from) == (from == 0 ? 40'000 : 0));
      CHECK(crossing(OpKind::reduce, 10'000, from) == 40'000);
      const std::size_t blocks = static_cast<std::size_t>(from == 0 ? 2 * per_node : per_node);
      CHECK(crossing(OpKind::reduce_scatter, 1000, from) == 4000 * blocks);
    }
  }
}

TEST_CASE("what is small goes in a tree where a group has as many ranks as the tuning says") {
  const Topology nodes({0, 0, 1, 1, 2}), alone(5);
  const auto in_tree = [](OpKind kind, std::uint64_t count, const Topology& topology, int ranks, int lone_ranks) {
    LinkTuning tuning = kTuning;
    tuning.tree_ranks = ranks;
    tuning.tree_lone_ranks = lone_ranks;
    return route_of(make(kind, count, 0), topology, tuning) == Route::tree;
  };
  for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::broadcast, OpKind::all_gather}) {
    CHECK(in_tree(kind, 64, nodes, 5, 9));
    CHECK_FALSE(in_tree(kind, 65, nodes, 5, 9));
    CHECK_FALSE(in_tree(kind, 64, nodes, 6, 2));
    CHECK(in_tree(kind, 64, alone, 9, 5));
    CHECK_FALSE(in_tree(kind, 64, alone, 2, 6));
  }
  CHECK(in_tree(OpKind::barrier, 0, nodes, 5, 9));
  for (const OpKind kind : {OpKind::reduce_scatter, OpKind::gather, OpKind::scatter, OpKind::all_to_all}) {
    CHECK_FALSE(in_tree(kind, 1, nodes, 2, 2));
  }
}

TEST_CASE("small data travel behind the signature") {
  const auto whole = [](OpKind kind, std::uint64_t count, int root, int rank) {
    return reduction(make(kind, count, root), rank, Topology({0, 0, 1, 1})).whole;
  };
  CHECK(whole(OpKind::all_reduce, 64, 0, 1));
  CHECK_FALSE(whole(OpKind::all_reduce, 65, 0, 1));
  CHECK(whole(OpKind::broadcast, 64, 1, 1));
  CHECK_FALSE(whole(OpKind::broadcast, 64, 1, 0));
  CHECK_FALSE(whole(OpKind::reduce_scatter, 1, 0, 0));
}

}  // namespace link_plan_test
