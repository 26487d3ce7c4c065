#include "lockstep/train/data/shard_indices.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "lockstep/train/data/batch_size.h"
#include "tests/support/expect_error.h"

namespace shard_indices_test {

using namespace lockstep;

namespace {

using Indices = std::vector<std::int64_t>;

// A fixed permutation that is not the identity: multiplication by a number coprime to every size, then reversed.
Indices scrambled(int size) {
  Indices order(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) order[static_cast<std::size_t>(size - 1 - i)] = std::int64_t{i} * 211 % size;
  return order;
}

std::vector<ShardIndices> all_shards(const Indices& permutation, int replicas, const ShardOptions& options) {
  std::vector<ShardIndices> shards;
  for (int rank = 0; rank < replicas; ++rank) {
    shards.push_back(shard_indices(permutation, replicas, rank, options));
    REQUIRE(shards.back().indices.size() == shard_size(permutation.size(), replicas, rank, options));
    REQUIRE(shards.back().unique_size <= shards.back().indices.size());
  }
  return shards;
}

Indices sorted_union(const std::vector<ShardIndices>& shards) {
  Indices all;
  for (const ShardIndices& shard : shards) all.insert(all.end(), shard.indices.begin(), shard.indices.end());
  std::sort(all.begin(), all.end());
  return all;
}

Indices sorted_unique_parts(const std::vector<ShardIndices>& shards) {
  Indices all;
  for (const ShardIndices& shard : shards) {
    all.insert(all.end(), shard.indices.begin(),
               shard.indices.begin() + static_cast<std::ptrdiff_t>(shard.unique_size));
  }
  std::sort(all.begin(), all.end());
  return all;
}

Indices iota(std::size_t count) {
  Indices indices(count);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

template <class Check>
void for_all_sizes(Check check) {
  for (const ShardLayout layout : {ShardLayout::strided, ShardLayout::contiguous}) {
    for (int size = 0; size <= 200; ++size) {
      for (int replicas = 1; replicas <= 9; ++replicas) {
        CAPTURE(size);
        CAPTURE(replicas);
        check(scrambled(size), replicas, layout);
      }
    }
  }
}

}  // namespace

// feature: F-04, Z-04
TEST_CASE("repeating pads with the head of the permutation, and with nothing else") {
  for_all_sizes([](const Indices& permutation, int replicas, ShardLayout layout) {
    const auto shards = all_shards(permutation, replicas, {.layout = layout});
    const std::size_t n = permutation.size();
    const std::size_t k = static_cast<std::size_t>(replicas);
    const std::size_t length = (n + k - 1) / k;
    for (const ShardIndices& shard : shards) REQUIRE(shard.indices.size() == length);
    Indices expected = permutation;
    for (std::size_t i = 0; i < length * k - n; ++i) expected.push_back(permutation[i % n]);
    std::sort(expected.begin(), expected.end());
    REQUIRE(sorted_union(shards) == expected);
    REQUIRE(sorted_unique_parts(shards) == iota(n));
  });
}

// feature: F-04, Z-04
TEST_CASE("dropping cuts the tail of the permutation, and nothing appears twice") {
  for_all_sizes([](const Indices& permutation, int replicas, ShardLayout layout) {
    const auto shards = all_shards(permutation, replicas, {.drop_last = true, .layout = layout});
    const std::size_t length = permutation.size() / static_cast<std::size_t>(replicas);
    for (const ShardIndices& shard : shards) {
      REQUIRE(shard.indices.size() == length);
      REQUIRE(shard.unique_size == length);
    }
    Indices expected(permutation.begin(), permutation.begin() + static_cast<std::ptrdiff_t>(length) * replicas);
    std::sort(expected.begin(), expected.end());
    REQUIRE(sorted_union(shards) == expected);
  });
}

// feature: F-06
TEST_CASE("without padding every index comes once, and lengths differ by at most one") {
  for_all_sizes([](const Indices& permutation, int replicas, ShardLayout layout) {
    const auto shards = all_shards(permutation, replicas, {.padding = Padding::none, .layout = layout});
    const auto by_size = [](const ShardIndices& a, const ShardIndices& b) {
      return a.indices.size() < b.indices.size();
    };
    const auto [shortest, longest] = std::minmax_element(shards.begin(), shards.end(), by_size);
    REQUIRE(longest->indices.size() - shortest->indices.size() <= 1);
    REQUIRE(sorted_union(shards) == iota(permutation.size()));
  });
}

// feature: F-13
TEST_CASE("layouts: every n-th position, or one block") {
  const Indices permutation = {10, 11, 12, 13, 14, 15, 16};
  CHECK(shard_indices(permutation, 3, 1).indices == Indices{11, 14, 10});
  CHECK(shard_indices(permutation, 3, 2).indices == Indices{12, 15, 11});
  CHECK(shard_indices(permutation, 3, 2).unique_size == 2);
  const ShardOptions contiguous{.layout = ShardLayout::contiguous};
  CHECK(shard_indices(permutation, 3, 1, contiguous).indices == Indices{13, 14, 15});
  CHECK(shard_indices(permutation, 3, 2, contiguous).indices == Indices{16, 10, 11});
  const ShardOptions exact{.padding = Padding::none, .layout = ShardLayout::contiguous};
  CHECK(shard_indices(permutation, 3, 0, exact).indices == Indices{10, 11, 12});
  CHECK(shard_indices(permutation, 3, 2, exact).indices == Indices{15, 16});
}

TEST_CASE("a rank outside its interval is refused with the interval") {
  const Indices permutation = iota(10);
  CHECK_ERROR(error_of([&] { shard_indices(permutation, 3, 3); }), ErrorKind::invalid_argument, "rank 3", "[0, 2]");
  CHECK_ERROR(error_of([&] { shard_indices(permutation, 3, -1); }), ErrorKind::invalid_argument, "rank -1", "[0, 2]");
  CHECK_ERROR(error_of([&] { shard_indices(permutation, 0, 0); }), ErrorKind::invalid_argument, "replicas is 0");
  CHECK_ERROR(error_of([&] { shard_size(10, 3, 1, {.drop_last = true, .padding = Padding::none}); }),
              ErrorKind::invalid_argument, "drop_last", "Padding::none");
}

// feature: F-09, F-10
TEST_CASE("batch sizes per rank and over all ranks") {
  CHECK(BatchSize::per_rank(32).effective(4) == 128);
  CHECK(BatchSize::global(128).local(2) == 64);
  CHECK(BatchSize::global(128).local(4) == 32);
  CHECK(BatchSize::global(128).effective(4) == 128);
  CHECK_ERROR(error_of([] { BatchSize::global(128).local(3); }), ErrorKind::invalid_argument, "128", "3 ranks", "129");
  CHECK_ERROR(error_of([] { BatchSize::per_rank(0).local(3); }), ErrorKind::invalid_argument, "at least 1");
}

}  // namespace shard_indices_test
