// Once an engine is warm, no collective takes memory from the heap.
#include <doctest/doctest.h>

#include <barrier>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/collective/arena_engine.h"
#include "lockstep/comm/collective/link_engine.h"
#include "tests/support/allocation_count.h"
#include "tests/support/arena_meshes.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tcp_meshes.h"

namespace allocation_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

// An ArenaEngine keeps as many collectives in flight, each with memory of its own: after this, each has had every kind.
constexpr int kWarmUp = arena::kInFlight;
constexpr int kCounted = 20;

using Engines = std::vector<std::unique_ptr<Engine>>;

Engines over_arenas(int ranks) {
  Engines engines;
  for (auto& arena : make_local_arenas(ranks, {.segment_bytes = std::size_t{64} << 20})) {
    engines.push_back(std::make_unique<ArenaEngine>(std::move(arena)));
  }
  return engines;
}

Engines over_links(std::vector<std::unique_ptr<Mesh>> meshes, const Topology& topology) {
  const LinkTuning patient{.announce_after = 20s};  // who waits for long takes some for what it says of that
  Engines engines;
  for (auto& mesh : meshes) engines.push_back(std::make_unique<LinkEngine>(std::move(mesh), 1, topology, patient));
  return engines;
}

// What one rank gives to every kind of collective, of this many elements.
class Calls {
 public:
  Calls(const Engine& engine, std::uint64_t count, std::byte* shared)
      : n_(static_cast<std::size_t>(engine.size())),
        count_(count),
        input_(n_ * count),
        output_(n_ * count),
        counts_(n_ * n_, count),
        shared_{shared, count * sizeof(float)},
        is_first_(engine.rank() == 0) {
    all_in_ = segment(input_, n_);
    all_out_ = segment(output_, n_);
    one_in_ = segment(input_, 1);
    one_out_ = segment(output_, 1);
  }

  void run(Engine& engine) {
    const Deadline deadline = Deadline::after(40s);
    const auto one = [&](OpKind kind, std::span<const Segment> in, std::span<const Segment> out, DType dtype,
                         std::uint64_t count) {
      engine.run({.kind = kind, .dtype = dtype, .count = count, .input = in, .output = out}, deadline);
    };
    one(OpKind::barrier, {}, {}, DType::u8, 0);
    one(OpKind::all_reduce, {}, {&one_out_, 1}, DType::f32, count_);
    one(OpKind::all_reduce, {}, {&one_out_, 1}, DType::bf16, 2 * count_);
    if (shared_.data != nullptr) one(OpKind::all_reduce, {}, {&shared_, 1}, DType::f32, count_);
    one(OpKind::reduce, {}, {&one_out_, 1}, DType::f32, count_);
    one(OpKind::broadcast, {}, {&one_out_, 1}, DType::f32, count_);
    one(OpKind::all_gather, {&one_in_, 1}, {&all_out_, 1}, DType::f32, count_);
    one(OpKind::reduce_scatter, {&all_in_, 1}, {&one_out_, 1}, DType::f32, count_);
    one(OpKind::scan, {&one_in_, 1}, {&one_out_, 1}, DType::f32, count_);
    one(OpKind::exclusive_scan, {&one_in_, 1}, {&one_out_, 1}, DType::bf16, 2 * count_);
    const std::span<const Segment> none;
    one(OpKind::gather, {&one_in_, 1}, is_first_ ? std::span<const Segment>(&all_out_, 1) : none, DType::f32, count_);
    one(OpKind::scatter, is_first_ ? std::span<const Segment>(&all_in_, 1) : none, {&one_out_, 1}, DType::f32, count_);
    engine.run({.kind = OpKind::all_to_all,
                .dtype = DType::f32,
                .input = {&all_in_, 1},
                .output = {&all_out_, 1},
                .counts = counts_},
               deadline);
  }

 private:
  Segment segment(std::vector<float>& values, std::size_t parts) const {
    return {reinterpret_cast<std::byte*>(values.data()), parts * count_ * sizeof(float)};
  }

  const std::size_t n_;
  const std::uint64_t count_;
  std::vector<float> input_, output_;
  const std::vector<std::uint64_t> counts_;
  const Segment shared_;
  Segment all_in_, all_out_, one_in_, one_out_;
  const bool is_first_;
};

std::byte* shared_memory(const Engine& engine, std::size_t bytes) {
  const std::shared_ptr<ArenaHeap> heap = engine.heap();
  return heap == nullptr ? nullptr : static_cast<std::byte*>(heap->allocate(bytes));
}

std::uint64_t allocations_when_warm(const Engines& engines, std::uint64_t count) {
  const int ranks = static_cast<int>(engines.size());
  std::barrier together(ranks);
  std::uint64_t before = 0, after = 0;
  run_ranks_or_throw(ranks, [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    std::byte* const shared = shared_memory(engine, count * sizeof(float));
    Calls calls(engine, count, shared);
    for (int i = 0; i < kWarmUp; ++i) calls.run(engine);
    together.arrive_and_wait();
    if (rank == 0) before = allocations();
    together.arrive_and_wait();
    for (int i = 0; i < kCounted; ++i) calls.run(engine);
    together.arrive_and_wait();
    if (rank == 0) after = allocations();
    together.arrive_and_wait();
    if (shared != nullptr) engine.heap()->deallocate(shared);
  });
  return after - before;
}

constexpr std::uint64_t kCounts[] = {1, 1000, 300'000};

}  // namespace

TEST_CASE("the count sees operator new and malloc, of every thread") {
  const std::uint64_t before = allocations();
  run_ranks_or_throw(1, [](int) { delete new int(5); });
  CHECK(allocations() > before);
}

TEST_CASE("collectives over an arena take nothing from the heap") {
  for (const int ranks : {2, 3}) {
    for (const std::uint64_t count : kCounts) {
      CAPTURE(ranks);
      CAPTURE(count);
      CHECK(allocations_when_warm(over_arenas(ranks), count) == 0);
    }
  }
}

TEST_CASE("collectives over links take nothing from the heap") {
  for (const int ranks : {2, 3}) {
    for (const std::uint64_t count : kCounts) {
      CAPTURE(ranks);
      CAPTURE(count);
      CHECK(allocations_when_warm(over_links(make_arena_meshes(ranks), Topology(ranks)), count) == 0);
      CHECK(allocations_when_warm(over_links(make_tcp_meshes(ranks), Topology(ranks)), count) == 0);
    }
  }
}

TEST_CASE("collectives in two levels take nothing from the heap") {
  for (const std::uint64_t count : kCounts) {
    CAPTURE(count);
    CHECK(allocations_when_warm(over_links(make_tcp_meshes(4, 1, 2), Topology({0, 0, 1, 1})), count) == 0);
  }
}

}  // namespace allocation_test
