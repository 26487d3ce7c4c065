#include "lockstep/ddp/bucket_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

using namespace lockstep;
using Plan = std::vector<std::vector<std::size_t>>;

TEST_CASE("buckets go from the last parameter to the first, and the first bucket is closed early") {
  const std::vector<PlannedParameter> parameters = {
      {30, DType::f32}, {30, DType::f32}, {30, DType::f32}, {5, DType::f32}, {6, DType::f32}};
  CHECK(plan_buckets(parameters, 10, 50) == Plan{{4, 3}, {2, 1}, {0}});
}

TEST_CASE("a cap of 0 gives every parameter its own bucket") {
  CHECK(plan_buckets({{4, DType::f32}, {4, DType::f32}}, 0, 0) == Plan{{1}, {0}});
  CHECK(plan_buckets({}, 1, 1).empty());
}

TEST_CASE("a bucket holds one dtype") {
  const std::vector<PlannedParameter> parameters = {{4, DType::f32}, {4, DType::f64}, {4, DType::f32}, {4, DType::f64}};
  CHECK(plan_buckets(parameters, 100, 100) == Plan{{3, 1}, {2, 0}});
}

TEST_CASE("every parameter is in exactly one bucket, whatever the sizes and caps") {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    std::vector<PlannedParameter> parameters(random() % 60);
    for (auto& parameter : parameters) parameter = {random() % 1000, random() % 3 == 0 ? DType::bf16 : DType::f32};
    const std::size_t cap = random() % 3000;
    std::vector<int> seen(parameters.size());
    for (const auto& bucket : plan_buckets(parameters, random() % 500, cap)) {
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
