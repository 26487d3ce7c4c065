// What other processes write into memory that this one reads.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "lockstep/base/checked.h"
#include "lockstep/comm/transport/abort_record.h"
#include "lockstep/comm/transport/arena.h"
#include "tests/fuzz/fuzz.h"

namespace shared_memory_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

template <class Value>
Bytes bytes_of(const Value& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// The bytes as far as they go; the rest keeps its zeros.
template <class Value>
std::unique_ptr<Value> value_of(ByteView bytes) {
  auto value = std::make_unique<Value>();
  std::memcpy(static_cast<void*>(value.get()), bytes.data(), std::min(bytes.size(), sizeof(Value)));
  return value;
}

}  // namespace

TEST_CASE("abort records in shared memory") {
  constexpr int kRanks = 4;
  const auto record = std::make_unique<arena::AbortRecord>();
  record_abort(*record, Error(ErrorKind::peer_lost, "rank 2 has died", {.peer = 2}));
  fuzz::run({.name = "abort records in shared memory", .seeds = {bytes_of(*record)}, .parse = [](ByteView bytes) {
               const Error error = read_abort(*value_of<arena::AbortRecord>(bytes), 0, kRanks);
               checked_rank_or_none(error.detail().peer, kRanks, "the test");
               checked_error_kind(static_cast<int>(error.kind()), "the test");
             }});
}

TEST_CASE("heads of shared memory") {
  constexpr std::size_t kSegment = std::size_t{8} << 20;
  constexpr int kRanks = 3;
  const std::size_t bytes = arena_bytes(kRanks, kSegment);
  const auto header = std::make_unique<arena::ArenaHeader>();
  header->segment_bytes = kSegment;
  fuzz::run({.name = "heads of shared memory", .seeds = {bytes_of(*header)}, .parse = [&](ByteView head) {
               const std::size_t segment = checked_segment_bytes(*value_of<arena::ArenaHeader>(head), bytes, kRanks);
               if (arena_bytes(kRanks, segment) > bytes) throw std::logic_error("beyond the mapping");
             }});
}

}  // namespace shared_memory_test
