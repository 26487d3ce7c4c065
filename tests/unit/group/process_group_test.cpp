#include "lockstep/group/process_group.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <string>

#include "lockstep/base/error.h"
#include "tests/support/local_groups.h"

using namespace lockstep;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

at::Tensor ramp(at::IntArrayRef sizes, int rank, at::ScalarType dtype = at::kFloat) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return (at::arange(count, at::kDouble) % 13 + rank).reshape(sizes).to(dtype);
}

constexpr Over kTransports[] = {Over::arena, Over::links};

}  // namespace

TEST_CASE("all_reduce: any shape and strides, in place, equal on all ranks") {
  for (const Over transport : kTransports) {
    run_group_or_throw(3, transport, [](const ProcessGroup& group) {
      for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte}) {
        const at::Tensor expected = ramp({4, 5}, 0, dtype) * 3 + 3;
        at::Tensor plain = ramp({4, 5}, group.rank(), dtype);
        group.all_reduce(plain);
        CHECK(at::equal(plain, expected));
        at::Tensor columns = ramp({5, 4}, group.rank(), dtype).t();
        group.all_reduce(columns, ReduceOp::max);
        CHECK(at::equal(columns, ramp({5, 4}, 2, dtype).t()));
      }
      at::Tensor scalar = at::full({}, group.rank() + 1.0);
      group.all_reduce(scalar, ReduceOp::avg);
      CHECK(scalar.item<double>() == 2.0);
      at::Tensor none = at::empty({0, 7});
      group.all_reduce(none);
      at::Tensor picture = ramp({2, 3, 4, 4}, group.rank()).contiguous(at::MemoryFormat::ChannelsLast);
      group.all_reduce(picture, ReduceOp::min);
      CHECK(at::equal(picture, ramp({2, 3, 4, 4}, 0)));
    });
  }
}

TEST_CASE("broadcast, all_gather, reduce_scatter and barrier") {
  for (const Over transport : kTransports) {
    run_group_or_throw(3, transport, [](const ProcessGroup& group) {
      for (int root = 0; root < 3; ++root) {
        at::Tensor value = ramp({100, 700}, group.rank());
        group.broadcast(value, root);
        CHECK(at::equal(value, ramp({100, 700}, root)));
      }
      const auto parts = group.all_gather(ramp({6}, group.rank()));
      REQUIRE(parts.size() == 3);
      for (int rank = 0; rank < 3; ++rank) CHECK(at::equal(parts[static_cast<std::size_t>(rank)], ramp({6}, rank)));
      at::Tensor mine = at::empty({4});
      group.reduce_scatter(mine, ramp({3, 4}, group.rank()));
      CHECK(at::equal(mine, (ramp({3, 4}, 0) * 3 + 3)[group.rank()]));
      group.barrier();
    });
  }
}

TEST_CASE("asynchronous calls finish in issue order, mixed with blocking ones") {
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      std::vector<at::Tensor> tensors;
      std::vector<Work> works;
      for (int i = 0; i < 100; ++i) {
        tensors.push_back(at::full({1000}, group.rank() + i));
        works.push_back(group.all_reduce_async(tensors.back()));
        if (i % 10 == 9) {
          at::Tensor now = at::ones({3});
          group.all_reduce(now);
          CHECK(at::equal(now, at::full({3}, 2)));
          CHECK(works.back().is_completed());
        }
      }
      for (std::size_t i = 0; i < works.size(); ++i) {
        works[i].wait(Deadline::after(10s));
        CHECK(tensors[i][0].item<float>() == static_cast<float>(2 * i + 1));
        CHECK(works[i].exception() == nullptr);
      }
    });
  }
}

TEST_CASE("what cannot be moved is refused by name, before anyone hears of it") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    CHECK_THROWS_WITH_AS(group.all_reduce(at::zeros({2}, at::kComplexFloat)), doctest::Contains("ComplexFloat"), Error);
    CHECK_THROWS_WITH_AS(group.all_reduce(at::Tensor()), doctest::Contains("undefined"), Error);
    CHECK_THROWS_WITH_AS(group.all_reduce({at::zeros({2}), at::zeros({2}, at::kInt)}),
                         doctest::Contains("tensor 1 is int32"), Error);
    at::Tensor whole = at::full({2}, 3, at::kInt);
    CHECK_THROWS_WITH_AS(group.all_reduce(whole, ReduceOp::avg), doctest::Contains("avg needs a floating-point type"),
                         Error);
    CHECK(at::equal(whole, at::full({2}, 3, at::kInt)));
    CHECK_THROWS_WITH_AS(group.broadcast(whole, 2), doctest::Contains("root 2"), Error);
    at::Tensor short_output = at::empty({3});
    CHECK_THROWS_AS(group.all_gather_into(short_output, at::zeros({2})), Error);
    group.barrier();
  });
}

TEST_CASE("shapes that differ between ranks are a desync on every rank, and Work carries it") {
  const auto errors = run_group(2, Over::arena, [](const ProcessGroup& group) {
    at::Tensor tensor = at::ones({group.rank() == 0 ? 8 : 4});
    const Work work = group.all_reduce_async(tensor, ReduceOp::sum, {.name = "layer1.weight"});
    work.wait(Deadline::after(10s));
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    try {
      std::rethrow_exception(error);
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::desync);
      CHECK(std::string(e.what()).find("of 8 float32") != std::string::npos);
      CHECK(std::string(e.what()).find("of 4 float32") != std::string::npos);
    }
  }
}

TEST_CASE("a per-call timeout counts, and the missing rank is named") {
  const auto errors = run_group(2, Over::arena, [](const ProcessGroup& group) {
    if (group.rank() == 0) group.barrier({.timeout = 100ms});
  });
  REQUIRE(errors[0]);
  CHECK_THROWS_WITH_AS(std::rethrow_exception(errors[0]), doctest::Contains("missing: rank 1"), Error);
}

TEST_CASE("a group that is destroyed with work in flight ends it, on both sides") {
  auto groups = local_groups(2);
  at::Tensor tensor = at::ones({10});
  const Work work = groups[0].all_reduce_async(tensor);
  groups.erase(groups.begin());
  CHECK_THROWS_WITH_AS(work.wait(Deadline::after(10s)), doctest::Contains("destroyed with collectives in flight"),
                       Error);
  CHECK_THROWS_AS(groups[0].barrier(), Error);
}

TEST_CASE("a group of one computes what many would") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    at::Tensor tensor = at::full({300'000}, 5.0);
    group.all_reduce(tensor, ReduceOp::avg);
    CHECK(at::equal(tensor, at::full({300'000}, 5.0)));
    CHECK(at::equal(group.all_gather(tensor)[0], tensor));
    group.barrier();
  });
}
