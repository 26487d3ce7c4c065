// How much address space ranks reserve, on machines of all sizes.
#include "lockstep/comm/transport/arena_size.h"

#include <doctest/doctest.h>

#include "lockstep/comm/transport/arena_memory.h"
#include "tests/support/expect_error.h"

namespace arena_size_test {

using namespace lockstep::internal;
using lockstep::contains;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20, kGiB = std::size_t{1} << 30, kTiB = std::size_t{1} << 40;
constexpr std::size_t kHole = 85 * kTiB;  // what 47 bits of addresses leave in one piece

}  // namespace

// feature: A-18
TEST_CASE("a rank's segment is half of the memory where the addresses suffice, else what they allow") {
  CHECK(segment_bytes_for({.memory = 16 * kGiB, .addresses = kHole}, 2) == 8 * kGiB);
  CHECK(segment_bytes_for({.memory = kTiB, .addresses = kHole}, 8) == kTiB / 2);
  for (const int ranks : {192, 512, 1024}) {
    CAPTURE(ranks);
    const std::size_t segment = segment_bytes_for({.memory = 2 * kTiB, .addresses = kHole}, ranks);
    CHECK(segment >= 8 * kGiB);
    CHECK(segment % kHugePageBytes == 0);
    CHECK(arena_bytes(ranks, segment) <= kHole / 2);
    CHECK(arena_bytes(ranks, segment + kHugePageBytes) > kHole / 2);  // all that there is
  }
}

TEST_CASE("no segment is smaller than is useful") {
  const std::size_t fewest = arena_bytes(4, kMinSegmentBytes);
  CHECK(segment_bytes_for({.memory = 16 * kGiB, .addresses = 2 * fewest}, 4) == kMinSegmentBytes);
  CHECK(segment_bytes_for({.memory = 16 * kMiB, .addresses = kHole}, 4) == kMinSegmentBytes);
  const ArenaRoom few{.memory = 16 * kGiB, .addresses = 2 * fewest - 2, .address_limit = 3 * kGiB};
  CHECK(segment_bytes_for(few, 4) == 0);
  CHECK(contains(shortage_of(few, 4), "MiB: raise the limit, which is 3072 MiB (ulimit -v"));
  CHECK(contains(shortage_of({.memory = 16 * kGiB, .addresses = kMiB}, 4), "start fewer ranks"));
}

TEST_CASE("a limit on files is one on memory that ranks share") {
  CHECK(segment_bytes_for({.memory = 16 * kGiB, .addresses = kHole, .file = 3 * kGiB}, 2) < 3 * kGiB / 2);
  const ArenaRoom small{.memory = 16 * kGiB, .addresses = kHole, .file = 1024};
  CHECK(segment_bytes_for(small, 2) == 0);
  CHECK(contains(shortage_of(small, 2), "limited to 1024 bytes"));
}

TEST_CASE("this process has room for as many ranks as a machine has") {
  for (const int ranks : {1, 8, 512}) CHECK(segment_bytes_for(room_of_this_process(ranks), ranks) >= kMinSegmentBytes);
}

}  // namespace arena_size_test
