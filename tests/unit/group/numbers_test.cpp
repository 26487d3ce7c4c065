#include "lockstep/comm/group/numbers.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"

namespace numbers_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

struct Totals {
  double loss = 0;
  std::int64_t correct = 0;
  std::uint32_t count = 0;
};
struct Text {
  double loss;
  std::string name;
};
struct Nested {
  Totals totals;
  double more;
};

static_assert(Numbers<double> && Numbers<bool> && Numbers<std::size_t> && Numbers<Totals>);
static_assert(Numbers<std::array<float, 3>>);
static_assert(!Numbers<Text> && !Numbers<Nested> && !Numbers<const double> && !Numbers<std::string>);
struct Array {
  double first;
  int others[2];
};
struct Empty {};
struct OfBase : Totals {
  double more;
};
struct OfEmptyBase : Empty {
  double only;
};
struct Constant {
  const double value;
};
static_assert(!Numbers<Array> && !Numbers<OfBase> && !Numbers<OfEmptyBase> && !Numbers<Constant> && !Numbers<Empty>);
// These get the static_assert of number_refs(), or another overload.
static_assert(NumberArgument<Array> && NumberArgument<OfBase> && NumberArgument<Text> && NumberArgument<const double>);
static_assert(!NumberArgument<CallOptions> && !NumberArgument<std::array<at::Tensor, 2>>);
static_assert(!Numbers<at::Tensor> && !Numbers<long double> && !Numbers<double*>);

// What `ranks` ranks have of type T.
template <class T>
std::vector<T> draw(std::mt19937_64& random, int ranks) {
  std::vector<T> values;
  for (int rank = 0; rank < ranks; ++rank) {
    if constexpr (std::is_floating_point_v<T>) {
      values.push_back(static_cast<T>(std::uniform_real_distribution<double>(-9, 9)(random)));
    } else {
      values.push_back(static_cast<T>(random()));
    }
  }
  return values;
}

template <class T>
T expected(const std::vector<T>& values, ReduceOp op) {
  T result = values.front();
  for (std::size_t i = 1; i < values.size(); ++i) {
    const T next = values[i];
    if (op == ReduceOp::max) result = next > result ? next : result;
    if (op == ReduceOp::min) result = next < result ? next : result;
    if constexpr (std::is_same_v<T, bool>) {
      if (op == ReduceOp::sum) result = result || next;
      if (op == ReduceOp::product) result = result && next;
    } else {
      using Wide = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
      if (op == ReduceOp::sum) result = static_cast<T>(static_cast<Wide>(result) + static_cast<Wide>(next));
      if (op == ReduceOp::product) result = static_cast<T>(static_cast<Wide>(result) * static_cast<Wide>(next));
    }
  }
  return result;
}

template <class T>
void compare(std::mt19937_64& random, const std::vector<ProcessGroup>& groups) {
  const int ranks = static_cast<int>(groups.size());
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
    const std::vector<T> values = draw<T>(random, ranks);
    run_ranks_or_throw(ranks, [&](int rank) {
      T value = values[static_cast<std::size_t>(rank)];
      groups[static_cast<std::size_t>(rank)].all_reduce(value, op);
      CHECK((value == expected(values, op)));
    });
  }
}

}  // namespace

TEST_CASE("numbers of every type are reduced in rank order, exactly") {
  std::mt19937_64 random(7);
  for (const int ranks : {1, 2, 5}) {
    const auto groups = local_groups(ranks);
    for (int turn = 0; turn < 10; ++turn) {
      compare<double>(random, groups);
      compare<float>(random, groups);
      compare<std::int64_t>(random, groups);
      compare<std::int32_t>(random, groups);
      compare<std::int16_t>(random, groups);
      compare<signed char>(random, groups);
      compare<std::uint64_t>(random, groups);
      compare<unsigned>(random, groups);
      compare<std::uint16_t>(random, groups);
      compare<std::uint8_t>(random, groups);
      compare<bool>(random, groups);
    }
  }
}

// feature: C-14
TEST_CASE("several numbers of different types, and a struct of them, take one collective") {
  run_group_or_throw(3, Over::links, [](const ProcessGroup& group) {
    const int rank = group.rank();
    double loss = rank + 0.5;
    std::size_t count = (std::size_t{1} << 60) + static_cast<std::size_t>(rank);
    group.all_reduce(loss, count);
    CHECK(loss == 4.5);
    CHECK(count == (std::size_t{3} << 60) + 3);
    Totals totals{rank * 0.25, -rank, static_cast<std::uint32_t>(rank)};
    group.all_reduce(totals);
    CHECK(totals.loss == 0.75);
    CHECK(totals.correct == -3);
    CHECK(totals.count == 3);
    std::array<float, 3> three{1, static_cast<float>(rank), 2};
    group.all_reduce(three, ReduceOp::avg);
    CHECK(three == std::array<float, 3>{1, 1, 2});
  });
}

// feature: C-14, G-04, Z-06
TEST_CASE("a mean weighs what each rank has by how much it is of") {
  run_group_or_throw(3, Over::arena, [](const ProcessGroup& group) {
    const double values[] = {1, 2, 6}, weights[] = {1, 3, 0};
    const auto rank = static_cast<std::size_t>(group.rank());
    CHECK(group.weighted_mean(values[rank], weights[rank]) == 1.75);
    CHECK(std::isnan(group.weighted_mean(1, 0)));
  });
}

TEST_CASE("NaN wins over every number, on all ranks") {
  run_group_or_throw(3, Over::arena, [](const ProcessGroup& group) {
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max, ReduceOp::sum}) {
      double value = group.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : group.rank();
      group.all_reduce(value, op);
      CHECK(std::isnan(value));
    }
  });
}

TEST_CASE("ranks that reduce other types, or by other operations, are told apart") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    std::int64_t integer = 1;
    double floating = 1;
    CHECK_ERROR(error_of([&] {
                  if (group.rank() == 0) group.all_reduce(integer);
                  if (group.rank() == 1) group.all_reduce(floating);
                }),
                ErrorKind::desync, "of a number: sum of int64", "all_reduce #1 of a number: sum of float64");
  });
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    std::int64_t integer = 1;
    double floating = 1;
    CHECK_ERROR(error_of([&] {
                  if (group.rank() == 0) group.all_reduce(floating, integer);
                  if (group.rank() == 1) group.barrier();
                }),
                ErrorKind::desync, "of 2 numbers: sum of float64 int64");
  });
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    double value = 1;
    const auto with = [&](ReduceOp op) { group.all_reduce(value, op, {.name = "loss"}); };
    CHECK_ERROR(error_of([&] { with(group.rank() == 0 ? ReduceOp::sum : ReduceOp::max); }), ErrorKind::desync,
                "of a number: loss, sum of float64", "of a number: loss, max of float64");
  });
}

TEST_CASE("what cannot be reduced is refused before anything is sent") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    int count = 1;
    CHECK_ERROR(error_of([&] { group.all_reduce(count, ReduceOp::avg); }), ErrorKind::invalid_argument,
                "avg needs a floating-point type");
    double floating = 1;
    CHECK_ERROR(error_of([&] { group.all_reduce(floating, ReduceOp::bxor); }), ErrorKind::invalid_argument,
                "bxor is not defined for float64");
    const double nan = std::numeric_limits<double>::quiet_NaN();
    CHECK(group.weighted_mean(group.rank() == 0 ? nan : 3, group.rank()) == 3);  // no batches, so no mean
    group.all_reduce(count);
    CHECK(count == 2);
    std::uint16_t bits = group.rank() == 0 ? 0x8001 : 0x0010;
    group.all_reduce(bits, ReduceOp::bor);
    CHECK(bits == 0x8011);
  });
}

}  // namespace numbers_test
