#include "lockstep/comm/collective/link_engine.h"

#include <doctest/doctest.h>

#include <atomic>
#include <bit>
#include <string>

#include "tests/support/counting_mesh.h"
#include "tests/support/sanitized.h"
#include "tests/unit/collective/link_fixture.h"

namespace link_engine_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min, ReduceOp::max};
// Small enough that medium sizes already pass through many chunks and fill windows.
constexpr LinkTuning kFine{.small_bytes = 512, .chunk_bytes = 1024, .window_chunks = 2};

void check_row(Engines& engines, const Row& row, int pieces, std::mt19937& random) {
  const std::string wrong = run_row(engines, row, pieces, random);
  INFO(to_string(row.kind) << ", " << to_string(row.reduce) << ", " << row.count << " " << to_string(row.dtype)
                           << ", root " << row.root << ", " << engines.size() << " ranks, " << pieces << " pieces");
  CHECK(wrong == "");
}

}  // namespace

TEST_CASE(
    "all_reduce gives the reduction in rank order, to the bit, for all types, operations, sizes and rank counts") {
  std::mt19937 random(1);
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    Engines engines = make_link_engines(make_arena_meshes(size), kFine);
    for (const DType dtype : kDTypes) {
      for (const ReduceOp op : kOps) {
        if (op == ReduceOp::avg && !is_floating_point(dtype)) continue;
        for (const std::size_t count : {0, 1, 4, 100, 1000, 3001}) {
          if (kIsSanitized && size > 3 && count != 1000) continue;
          check_row(engines, {.dtype = dtype, .reduce = op, .count = count}, 1, random);
        }
      }
    }
  }
}

TEST_CASE("large all_reduce with the default sizes") {
  std::mt19937 random(2);
  for (const int size : {2, 3, 5, 8}) {
    Engines engines = make_link_engines(make_arena_meshes(size));
    check_row(engines, {.reduce = ReduceOp::avg, .count = 65537}, 1, random);
    check_row(engines, {.dtype = DType::bf16, .count = 65537}, 1, random);
    check_row(engines, {.dtype = DType::u8, .reduce = ReduceOp::max, .count = kIsSanitized ? 1 << 18 : 1 << 20}, 1,
              random);
    if (size <= 3) check_row(engines, {.count = kIsSanitized ? 1 << 18 : 1 << 20}, 1, random);
  }
}

TEST_CASE("broadcast, all_gather, reduce_scatter and barrier, memory in odd pieces") {
  std::mt19937 random(3);
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    Engines engines = make_link_engines(make_arena_meshes(size), kFine);
    for (const std::size_t count : {0, 1, 4, 100, 1000, kIsSanitized ? 10'001 : 65'537}) {
      for (int root = 0; root < size; ++root) {
        check_row(engines, {.kind = OpKind::broadcast, .dtype = DType::u8, .root = root, .count = count}, 3, random);
      }
      check_row(engines, {.kind = OpKind::all_gather, .dtype = DType::f64, .count = count}, 4, random);
      check_row(engines, {.kind = OpKind::reduce_scatter, .reduce = ReduceOp::avg, .count = count}, 4, random);
      check_row(engines, {.kind = OpKind::barrier}, 1, random);
    }
  }
}

TEST_CASE("in nodes of any sizes reductions have the bits of the rank order") {
  std::mt19937 random(6);
  for (int size = 2; size <= 9; size += kIsSanitized ? 3 : 1) {
    for (const int layout : {1, 2, 3, 4, 5}) {
      std::vector<int> node_of;
      for (int rank = 0; rank < size; ++rank) {
        // Of two to four ranks; in the last layouts of 1, 1, 2, 4 ... and of 1 and many.
        node_of.push_back(layout < 4 ? rank / (layout + 1) : layout == 4 ? std::bit_width(unsigned(rank)) : rank != 0);
      }
      Engines engines;
      for (auto& mesh : make_arena_meshes(size, layout % 2 == 0 ? 512 : 64 << 10)) {
        engines.push_back(std::make_unique<LinkEngine>(std::move(mesh), 7, Topology(node_of), kFine));
      }
      INFO(size << " ranks, layout " << layout);
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32}) {
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
          if (op == ReduceOp::avg && (kIsSanitized || !is_floating_point(dtype))) continue;
          check_row(engines, {OpKind::reduce_scatter, dtype, op, 0, 600}, 3, random);
          check_row(engines, {OpKind::reduce_scatter, dtype, op, 0, 1537}, 3, random);
          check_row(engines, {OpKind::all_reduce, dtype, op, 0, 1537}, 2, random);
        }
      }
    }
  }
}

TEST_CASE("a long random sequence of collectives") {
  std::mt19937 random(4);
  for (const int size : {2, 3, 7}) {
    // Tiny rings and chunks, so that every stream stalls again and again.
    Engines engines =
        make_link_engines(make_arena_meshes(size, 512), {.small_bytes = 100, .chunk_bytes = 64, .window_chunks = 1});
    for (int step = 0; step < (kIsSanitized ? 60 : 150); ++step) {
      const DType dtype = kDTypes[random() % std::size(kDTypes)];
      ReduceOp op = kOps[random() % std::size(kOps)];
      if (op == ReduceOp::avg && !is_floating_point(dtype)) op = ReduceOp::sum;
      const auto kind = static_cast<OpKind>(random() % 5);
      const int root = static_cast<int>(random() % static_cast<unsigned>(size));
      const std::size_t count = kind == OpKind::barrier ? 0 : random() % 1500;
      check_row(engines, {kind, dtype, op, root, count}, 1 + static_cast<int>(random() % 6), random);
    }
  }
}

TEST_CASE("input and output may be the same memory where the interface says so") {
  Engines engines = make_link_engines(make_arena_meshes(3), kFine);
  constexpr std::size_t kCount = 5000;
  run_ranks_or_throw(3, [&](int rank) {
    std::vector<std::int32_t> data(3 * kCount, rank + 1);
    const auto at = [&](std::size_t part) {
      return Segment{reinterpret_cast<std::byte*>(&data[part * kCount]), kCount * 4};
    };
    const Segment own[] = {at(static_cast<std::size_t>(rank))};
    const Segment all[] = {at(0), at(1), at(2)};
    engines[static_cast<std::size_t>(rank)]->run(
        {.kind = OpKind::reduce_scatter, .dtype = DType::i32, .count = kCount, .input = all, .output = own}, soon());
    engines[static_cast<std::size_t>(rank)]->run(
        {.kind = OpKind::all_gather, .dtype = DType::i32, .count = kCount, .input = own, .output = all}, soon());
    if (data != std::vector<std::int32_t>(3 * kCount, 6)) throw std::runtime_error("wrong sum");
  });
}

// feature: C-03
TEST_CASE("a large all_reduce sends 2(n-1)/n of its bytes from every rank, and 40 for each signature") {
  for (const std::size_t size : {2, 4, 8}) {
    std::vector<SentCount> sent(size);
    std::vector<std::unique_ptr<Mesh>> meshes;
    for (auto& mesh : make_arena_meshes(static_cast<int>(size))) {
      const auto rank = static_cast<std::size_t>(mesh->rank());
      meshes.push_back(std::make_unique<CountingMesh>(std::move(mesh), sent[rank]));
    }
    Engines engines = make_link_engines(std::move(meshes));
    std::mt19937 random(5);
    const std::size_t bytes = std::size_t{4} << 17;
    check_row(engines, {.count = bytes / 4}, 1, random);
    for (const auto& each : sent) CHECK(each.bytes == 2 * (size - 1) * bytes / size + (size - 1) * sizeof(Signature));
  }
}

TEST_CASE("a tuning that cannot work is refused") {
  for (const LinkTuning& tuning :
       {LinkTuning{.chunk_bytes = 0}, LinkTuning{.chunk_bytes = 100}, LinkTuning{.window_chunks = 0}}) {
    CHECK_THROWS_AS(LinkEngine(std::move(make_arena_meshes(1)[0]), 1, tuning), Error);
  }
}

}  // namespace link_engine_test
