// What the ArenaEngine makes of ranks that show it nonsense.
#include "lockstep/comm/collective/arena_engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/collective/arena_staged.h"
#include "tests/support/expect_error.h"

namespace arena_engine_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kCount = 64 << 10;

Deadline soon() { return Deadline::after(20s); }

// The ranks of one arena, played by one thread, each with an operand in it.
struct Ranks {
  explicit Ranks(int size) {
    for (auto& arena : make_local_arenas(size, {.segment_bytes = std::size_t{8} << 20})) {
      arenas.push_back(arena.get());
      engines.push_back(std::make_unique<ArenaEngine>(std::move(arena)));
    }
  }
  std::uint64_t post(std::size_t rank) {
    std::byte* const behind_staging =
        arenas[rank]->segment(static_cast<int>(rank)) + arena::kStagingBuffers * arena::kStagingBytes;
    const Segment output{behind_staging, kCount * sizeof(float)};
    return engines[rank]->post(
        {.kind = OpKind::all_reduce, .dtype = DType::f32, .count = kCount, .output = {&output, 1}}, soon());
  }

  std::vector<Arena*> arenas;  // the engines' own
  std::vector<std::unique_ptr<ArenaEngine>> engines;
};

}  // namespace

TEST_CASE("a chunk has elements of every part, of however many ranks") {
  CHECK(elements_of_chunk(4, 1) == std::size_t{1} << 18);
  CHECK(elements_of_chunk(16, 1024) == 64);
  CHECK(elements_of_chunk(16, 1025) == 63);
  CHECK(elements_of_chunk(16, 4096) == 16);
  CHECK(elements_of_chunk(16, 1 << 20) == 1);
}

// feature: A-18
TEST_CASE("a group that is split off reduces the tensors of its origin where they lie, also after that has ended") {
  std::vector<std::unique_ptr<ArenaEngine>> engines;
  std::vector<Arena*> parts;
  std::vector<float*> tensors;
  {
    const auto wholes = make_local_arenas(3, {.segment_bytes = std::size_t{8} << 20});
    std::vector<std::shared_ptr<const ArenaHeaps>> heaps;
    for (const int rank : {2, 0}) {
      const Arena& whole = *wholes[static_cast<std::size_t>(rank)];
      heaps.push_back(std::make_shared<const ArenaHeaps>(whole.heaps()->of({2, 0})));
      tensors.push_back(static_cast<float*>(whole.heap()->allocate(kCount * sizeof(float))));
      std::fill_n(tensors.back(), kCount, 1.0F + static_cast<float>(rank));
    }
    for (auto& arena : make_local_arenas(2, {.segment_bytes = kStagingAreaBytes}, heaps)) {
      parts.push_back(arena.get());
      engines.push_back(std::make_unique<ArenaEngine>(std::move(arena)));
    }
  }
  std::uint64_t number = 0;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const Segment output{reinterpret_cast<std::byte*>(tensors[rank]), kCount * sizeof(float)};
    number = engines[rank]->post(
        {.kind = OpKind::all_reduce, .dtype = DType::f32, .count = kCount, .output = {&output, 1}}, soon());
    CHECK(parts[rank]->slot(static_cast<int>(rank), number).segments == 1);  // in place
  }
  for (int turn = 0; turn < 2; ++turn) {
    for (auto& engine : engines) engine->poll();
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    engines[rank]->wait(number, soon());
    CHECK(std::all_of(tensors[rank], tensors[rank] + kCount, [](float value) { return value == 4.0F; }));
    engines[rank]->heap()->deallocate(tensors[rank]);
  }
}

TEST_CASE("a rank that finds nonsense tells the others, which do not wait for it any longer") {
  struct Lie {
    arena::SegmentRef ref;
    const char* text;
  };
  const Lie lies[] = {{{~std::uint64_t{0} - 8, 16}, "posted memory outside its segment"},
                      {{1 << 20, 16}, "posted 16 bytes instead of 262144"}};
  for (const Lie& lie : lies) {
    Ranks ranks(3);
    std::uint64_t sequence = 0;
    for (std::size_t rank = 0; rank < 3; ++rank) sequence = ranks.post(rank);
    CHECK_FALSE(ranks.engines[2]->poll());  // its share is done before anything is wrong
    arena::Slot& slot = ranks.arenas[1]->slot(1, sequence);
    std::memcpy(slot.payload, &lie.ref, sizeof lie.ref);
    CHECK_ERROR(error_of([&] { ranks.engines[0]->poll(); }), ErrorKind::corrupt_data, "rank 1", lie.text,
                "all_reduce(sum) #1", "as seen by rank 0");
    const Error told = error_of([&] { ranks.engines[2]->wait(sequence, soon()); });
    CHECK_ERROR(told, ErrorKind::corrupt_data, "rank 1", lie.text, "as seen by rank 0");
    CHECK(told.detail().peer == 1);
    CHECK_ERROR(error_of([&] { ranks.post(2); }), ErrorKind::corrupt_data, lie.text);
  }
}

}  // namespace arena_engine_test
