// Once a group is warm, its calls take no memory from the heap, whatever they are called with.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <barrier>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "tests/support/allocation_count.h"
#include "tests/support/quiet_groups.h"

namespace allocation_test {

using namespace lockstep;
using namespace lockstep::testing;

namespace {

constexpr int kRanks = 2;
// More than an engine keeps in flight, so that each of them has had every kind of call.
constexpr int kWarmUp = 3 * arena::kInFlight;
constexpr int kCounted = 20;

struct Tensors {
  at::Tensor one = at::arange(1000, at::kFloat), double_one = at::zeros({2000}, at::kFloat);
  at::Tensor strided = at::zeros({40, 50}, at::kFloat).t();
  std::vector<at::Tensor> many, twice_many, parts_in, parts_out;

  Tensors() {
    for (int i = 0; i < 20; ++i) many.push_back(at::zeros({100 * i}, at::kFloat));
    for (int i = 0; i < 20; ++i) twice_many.push_back(at::zeros({kRanks * 100 * i}, at::kFloat));
    for (int i = 0; i < kRanks; ++i) parts_in.push_back(at::zeros({500}, at::kFloat));
    for (int i = 0; i < kRanks; ++i) parts_out.push_back(at::zeros({500}, at::kFloat));
  }
};

void call_and_wait(const ProcessGroup& group, const Tensors& with) {
  group.barrier();
  group.all_reduce(with.one, ReduceOp::avg);
  group.all_reduce(with.many);
  group.reduce(with.many, 1);
  group.broadcast(with.many, 1, {.name = "weights"});
  group.all_gather_into(with.double_one, with.one);
  group.reduce_scatter(with.one, with.double_one);
  group.all_to_all(with.parts_out, with.parts_in);
}

void call_and_go_on(const ProcessGroup& group, const Tensors& with) {
  const Work works[] = {
      group.barrier_async(),
      group.all_reduce_async(with.one, ReduceOp::avg),
      group.all_reduce_async(with.many),
      group.broadcast_async(with.many),
      group.all_gather_into_async(with.double_one, with.one),
      group.all_reduce_async(with.double_one, ReduceOp::sum, {.in_caller = true}),
  };
  for (const Work& work : works) work.wait();
}

// What calls keep grows with the longest list that they had, and with how many were in flight. All of one rank's are
// while the other one has not come.
void grow(const ProcessGroup& group, const Tensors& with, std::barrier<>& together) {
  for (const int late : {0, 1}) {
    std::vector<Work> works;
    if (group.rank() == late) together.arrive_and_wait();
    for (int i = 0; i < 10; ++i) works.push_back(group.all_gather_into_async(with.twice_many, with.many));
    if (group.rank() != late) together.arrive_and_wait();
    for (const Work& work : works) work.wait();
  }
}

// How many the last of some windows saw; they end with the first that saw none. What the schedule of the threads has
// not brought about before, such as one more call in flight, may take memory once; what a call takes each time is in
// each.
template <class Body>
std::uint64_t allocations_when_warm(Over transport, Body body) {
  constexpr int kMostWindows = 10;
  std::barrier together(kRanks);
  std::uint64_t before = 0, seen = 1;
  run_quiet_group(kRanks, transport, [&](const ProcessGroup& group) {
    const Tensors tensors;
    grow(group, tensors, together);
    for (int i = 0; i < kWarmUp; ++i) body(group, tensors);
    for (int window = 0; window < kMostWindows && seen != 0; ++window) {
      together.arrive_and_wait();
      if (group.rank() == 0) before = allocations();
      together.arrive_and_wait();
      for (int i = 0; i < kCounted; ++i) body(group, tensors);
      together.arrive_and_wait();
      if (group.rank() == 0) seen = allocations() - before;
      together.arrive_and_wait();
    }
  });
  return seen;
}

}  // namespace

TEST_CASE("calls of a group take nothing from the heap") {
  for (const Over transport : {Over::arena, Over::links}) {
    CAPTURE(static_cast<int>(transport));
    CHECK(allocations_when_warm(transport, call_and_wait) == 0);
  }
}

TEST_CASE("calls on the group's thread take nothing from the heap") {
  for (const Over transport : {Over::arena, Over::links}) {
    CAPTURE(static_cast<int>(transport));
    CHECK(allocations_when_warm(transport, call_and_go_on) == 0);
  }
}

TEST_CASE("a tensor that is not in order is copied, and only that takes memory") {
  CHECK(allocations_when_warm(
            Over::arena, [](const ProcessGroup& group, const Tensors& with) { group.all_reduce(with.strided); }) != 0);
}

}  // namespace allocation_test
