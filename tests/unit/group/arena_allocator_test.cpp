#include "lockstep/comm/group/arena_allocator.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <doctest/doctest.h>

#include <thread>

#include "tests/support/forked_child.h"
#include "tests/support/local_groups.h"

namespace arena_allocator_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

TEST_CASE("inside a scope large tensors lie in the arena, small ones and those of other threads do not") {
  auto arenas = make_local_arenas(1, {.segment_bytes = std::size_t{64} << 20});
  const auto heap = arenas[0]->heap();
  at::Tensor outside = at::empty({100'000});
  CHECK_FALSE(heap->owns(outside.data_ptr()));
  at::Tensor inside;
  {
    const ArenaScope scope(heap);
    inside = at::empty({100'000});
    CHECK(heap->owns(inside.data_ptr()));
    CHECK_FALSE(heap->owns(at::empty({10}).data_ptr()));
    std::jthread([&] { CHECK_FALSE(heap->owns(at::empty({100'000}).data_ptr())); });
  }
  CHECK_FALSE(heap->owns(at::empty({100'000}).data_ptr()));
  inside.fill_(1);
  CHECK(inside.sum().item<float>() == 100'000);
}

#if !defined(__SANITIZE_THREAD__)  // a child makes the allocator's lock new, which the sanitizer takes for the parent's
TEST_CASE("a child that is forked within a scope has ordinary memory, and may free its parent's tensors") {
  auto arenas = make_local_arenas(1, {.segment_bytes = std::size_t{64} << 20});
  const auto heap = arenas[0]->heap();
  const ArenaScope scope(heap);
  at::Tensor parents = at::empty({100'000});
  const pid_t child = start_child([&] {
    at::Tensor own = at::empty({100'000});  // not filled: OpenMP's threads do not survive fork()
    // Where the parent has its arena a child has nothing, or ordinary memory.
    own.mutable_data_ptr<float>()[99'999] = 7;
    const bool is_written = own.const_data_ptr<float>()[99'999] == 7;
    parents.reset();
    own.reset();
    return is_written;
  });
  CHECK(exit_code_of(child) == 0);
  CHECK(heap->owns(at::empty({100'000}).data_ptr()));
}
#endif

TEST_CASE("an allocator that the program installs replaces ours, and ours no other of a higher priority") {
  class Own final : public c10::Allocator {
   public:
    c10::DataPtr allocate(std::size_t bytes) override { return next->allocate(bytes); }
    void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
    c10::Allocator* next = c10::GetAllocator(c10::kCPU);
  };
  // In children, since a process cannot lower the priority of its allocator again.
  for (const std::uint8_t priority : {0, 1}) {
    CHECK(exit_code_of_child([&] {
            auto arenas = make_local_arenas(1, {.segment_bytes = std::size_t{64} << 20});
            Own& own = *new Own;
            if (priority == 1) c10::SetAllocator(c10::kCPU, &own, priority);
            const ArenaScope scope(arenas[0]->heap());
            c10::SetAllocator(c10::kCPU, &own, priority);
            return c10::GetAllocator(c10::kCPU) == &own;
          }) == 0);
  }
}

// feature: G-02
TEST_CASE("memory that was freed is used again, so that steps cost no new pages") {
  auto arenas = make_local_arenas(1, {.segment_bytes = std::size_t{64} << 20});
  const auto heap = arenas[0]->heap();
  const ArenaScope scope(heap);
  (void)at::empty({1'000'000});
  const std::size_t used = heap->used_bytes();
  for (int step = 0; step < 100; ++step) (void)at::empty({1'000'000 - step * 10});
  CHECK(heap->used_bytes() == used);
}

TEST_CASE("a full arena falls back to ordinary memory") {
  auto arenas = make_local_arenas(1, {.segment_bytes = std::size_t{8} << 20});
  const auto heap = arenas[0]->heap();
  const ArenaScope scope(heap);
  const at::Tensor large = at::ones({10'000'000});
  CHECK_FALSE(heap->owns(large.data_ptr()));
  CHECK(large.sum().item<double>() == 10'000'000);
}

TEST_CASE("a tensor outlives its group, and may die on another thread") {
  at::Tensor survivor;
  {
    const auto groups = local_groups(1);
    survivor = groups[0].empty({1000, 100});
    CHECK(groups[0].is_shared(survivor));
  }
  survivor.fill_(2);
  CHECK(survivor.sum().item<double>() == 200'000);
  std::jthread([&] { survivor.reset(); });
}

TEST_CASE("an arena is unmapped once its group and its tensors are gone, whichever goes last") {
  for (const bool tensor_first : {false, true}) {
    std::weak_ptr<ArenaHeap> watched;
    at::Tensor tensor;
    {
      auto arenas = make_local_arenas(1, {.segment_bytes = std::size_t{64} << 20});
      watched = arenas[0]->heap();
      tensor = empty_in_arena(arenas[0]->heap(), {1000, 100}, at::kFloat);
      if (tensor_first) tensor.reset();
    }
    CHECK(watched.expired() == tensor_first);
    tensor.reset();
    CHECK(watched.expired());
  }
}

TEST_CASE("a scope that another thread closes ends at once, and that thread's own goes on") {
  auto arenas = make_local_arenas(2, {.segment_bytes = std::size_t{64} << 20});
  const auto heap = arenas[0]->heap(), others = arenas[1]->heap();
  ArenaScope scope(heap);
  CHECK(heap->owns(at::empty({100'000}).data_ptr()));
  std::jthread([&] {
    const ArenaScope own(others);
    scope.close();
    CHECK(others->owns(at::empty({100'000}).data_ptr()));
  }).join();
  CHECK_FALSE(heap->owns(at::empty({100'000}).data_ptr()));
  const ArenaScope again(heap);
  CHECK(heap->owns(at::empty({100'000}).data_ptr()));
}

TEST_CASE("scopes nest, and close in any order") {
  auto arenas = make_local_arenas(2, {.segment_bytes = std::size_t{64} << 20});
  const auto first = arenas[0]->heap(), second = arenas[1]->heap();
  const auto allocates_in = [](const std::shared_ptr<ArenaHeap>& heap) {
    return heap->owns(at::empty({100'000}).data_ptr());
  };
  auto outer = std::make_unique<ArenaScope>(first);
  auto inner = std::make_unique<ArenaScope>(second);
  const ArenaScope none(nullptr);
  CHECK(allocates_in(second));
  outer.reset();
  CHECK(allocates_in(second));
  outer = std::make_unique<ArenaScope>(first);
  CHECK(allocates_in(first));
  inner.reset();
  CHECK(allocates_in(first));
  inner = std::make_unique<ArenaScope>(second);
  inner.reset();
  CHECK(allocates_in(first));
  outer->close();
  outer->close();
  CHECK_FALSE(allocates_in(first));
  CHECK_FALSE(allocates_in(second));
}

TEST_CASE("a closed scope keeps no arena alive, even if its thread allocates no more") {
  std::weak_ptr<ArenaHeap> watched;
  std::unique_ptr<ArenaScope> scope;
  {
    auto arenas = make_local_arenas(1, {.segment_bytes = std::size_t{64} << 20});
    watched = arenas[0]->heap();
    scope = std::make_unique<ArenaScope>(arenas[0]->heap());
  }
  CHECK_FALSE(watched.expired());
  std::jthread([&] { scope.reset(); }).join();
  CHECK(watched.expired());
}

}  // namespace arena_allocator_test
