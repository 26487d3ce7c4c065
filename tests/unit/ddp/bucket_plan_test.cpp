#include "lockstep/train/ddp/buckets/bucket_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace bucket_plan_test {

using namespace lockstep;
using namespace lockstep::internal;
using Plan = std::vector<std::vector<std::size_t>>;

namespace {

// In the order of registration reversed, as before the first backward.
Plan plan(const std::vector<PlannedParameter>& parameters, const std::vector<std::size_t>& caps) {
  std::vector<std::size_t> order(parameters.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
  return plan_buckets(parameters, order, caps);
}

}  // namespace

TEST_CASE("buckets go from the last parameter to the first, and the first bucket is closed early") {
  const std::vector<PlannedParameter> parameters = {
      {30, DType::f32}, {30, DType::f32}, {30, DType::f32}, {5, DType::f32}, {6, DType::f32}};
  CHECK(plan(parameters, {10, 50}) == Plan{{4, 3}, {2, 1}, {0}});
}

TEST_CASE("a cap of 0 gives every parameter its own bucket") {
  CHECK(plan({{4, DType::f32}, {4, DType::f32}}, {0}) == Plan{{1}, {0}});
  CHECK(plan({}, {1}).empty());
}

TEST_CASE("a bucket holds one dtype") {
  const std::vector<PlannedParameter> parameters = {{4, DType::f32}, {4, DType::f64}, {4, DType::f32}, {4, DType::f64}};
  CHECK(plan(parameters, {100}) == Plan{{3, 1}, {2, 0}});
}

// feature: M-04
TEST_CASE("a bucket holds one device, and a sparse gradient is alone") {
  CHECK(plan({{4, DType::f32, 0}, {4, DType::f32, 1}, {4, DType::f32, 0}, {4, DType::f32, 1}}, {100}) ==
        Plan{{3, 1}, {2, 0}});
  CHECK(plan({{4, DType::f32}, {4, DType::f32, 0, true}, {4, DType::f32}}, {100}) == Plan{{2, 0}, {1}});
}

TEST_CASE("delayed parameters come last, in one bucket whatever the cap") {
  const PlannedParameter delayed{40, DType::f32, 0, false, true};
  CHECK(plan({{4, DType::f32}, delayed, {4, DType::f32}, delayed}, {0}) == Plan{{2}, {0}, {3, 1}});
  CHECK(plan({delayed, delayed}, {1}) == Plan{{1, 0}});
}

TEST_CASE("a list of caps is for one bucket after the other, its last one for all others") {
  const std::vector<PlannedParameter> parameters(10, {10, DType::f32});
  CHECK(plan(parameters, {10, 20, 30}) == Plan{{9}, {8, 7}, {6, 5, 4}, {3, 2, 1}, {0}});
}

TEST_CASE("the order of readiness is the order of reduction") {
  const std::vector<PlannedParameter> parameters(4, {10, DType::f32});
  const std::vector<std::size_t> order{2, 0, 3, 1};
  const std::vector<std::size_t> caps{20};
  CHECK(plan_buckets(parameters, order, caps) == Plan{{2, 0}, {3, 1}});
}

TEST_CASE("every parameter is in exactly one bucket, whatever the sizes and caps") {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    std::vector<PlannedParameter> parameters(random() % 60);
    for (auto& parameter : parameters) parameter = {random() % 1000, random() % 3 == 0 ? DType::bf16 : DType::f32};
    const std::size_t cap = random() % 3000;
    std::vector<int> seen(parameters.size());
    for (const auto& bucket : plan(parameters, {random() % 500, cap})) {
      REQUIRE_FALSE(bucket.empty());
      std::size_t bytes = 0;
      for (const std::size_t index : bucket) {
        ++seen[index];
        CHECK(parameters[index].dtype == parameters[bucket.front()].dtype);
        if (index != bucket.back()) bytes += parameters[index].bytes;
      }
      CHECK(std::is_sorted(bucket.rbegin(), bucket.rend()));
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
  }
}

}  // namespace bucket_plan_test
