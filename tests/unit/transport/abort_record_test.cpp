// The record of why a group of ranks that share memory has ended.
#include "lockstep/comm/transport/abort_record.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/arena_meshes.h"
#include "tests/support/expect_error.h"

namespace abort_record_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

using arena::AbortRecord;

Error told(const AbortRecord& record) {
  return error_of([&] { throw_abort(record, 2, 4); });
}

}  // namespace

TEST_CASE("the first error stays, with its kind, peer and text") {
  const auto record = std::make_unique<AbortRecord>();
  CHECK_FALSE(has_abort(*record));
  CHECK(record_abort(*record, Error(ErrorKind::timeout, "nobody came", {.rank = 0, .peer = 1})));
  CHECK_FALSE(record_abort(*record, Error(ErrorKind::aborted, "too late")));
  CHECK(has_abort(*record));
  CHECK_ERROR(told(*record), ErrorKind::timeout, "nobody came");
  CHECK(told(*record).detail().rank == 2);
  CHECK(told(*record).detail().peer == 1);
}

// fault: S6
TEST_CASE("a text that looks like a format is quoted as it is") {
  const auto record = std::make_unique<AbortRecord>();
  const std::string text = "%n%s%99999d {} {0:>99999} {9} $(reboot)";
  record_abort(*record, Error(ErrorKind::aborted, text));
  CHECK_ERROR(told(*record), ErrorKind::aborted, text);
}

TEST_CASE("a writer that stops or dies half way holds nobody up, and the next one is heard") {
  const auto record = std::make_unique<AbortRecord>();
  record->taken = 2;  // two have begun to write
  record->places[0].text_bytes = 1000;
  CHECK_FALSE(has_abort(*record));
  CHECK(record_abort(*record, Error(ErrorKind::peer_lost, "rank 3 has died", {.rank = 0, .peer = 3})));
  CHECK_ERROR(told(*record), ErrorKind::peer_lost, "rank 3 has died");

  // Also in a mesh, whose ranks go on meanwhile.
  const ByteRings rings = make_rings(2);
  const auto mesh = make_arena_mesh(rings, 0, name_peers(2));
  rings.control().abort_record().taken = 1;
  const std::byte byte{1};
  CHECK(mesh->send_some(1, {&byte, 1}) == 1);
  mesh->abort(Error(ErrorKind::aborted, "on purpose"));
  CHECK_ERROR(error_of([&] { mesh->send_some(1, {&byte, 1}); }), ErrorKind::aborted, "on purpose");
}

// fault: S8
TEST_CASE("a record that somebody has overwritten is an error and no more") {
  const auto record = std::make_unique<AbortRecord>();
  record->first = 77;
  CHECK_ERROR(told(*record), ErrorKind::corrupt_data, "in shared memory: the place is 76");
  record->first = 1;
  record->places[0] = {.kind = 99, .peer = -5, .text_bytes = 0xffffffff, .text = {}};
  CHECK(told(*record).kind() == ErrorKind::corrupt_data);
}

TEST_CASE("of many at once one is the first, and all ranks repeat it") {
  for (int round = 0; round < 50; ++round) {
    const auto record = std::make_unique<AbortRecord>();
    std::atomic<int> first{-1};
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 6; ++i) {
        threads.emplace_back([&, i] {
          if (record_abort(*record, Error(ErrorKind::aborted, "by " + std::to_string(i)))) first = i;
          while (!has_abort(*record)) std::this_thread::yield();
        });
      }
    }
    CHECK_ERROR(told(*record), ErrorKind::aborted, "by " + std::to_string(first));
  }
}

}  // namespace abort_record_test
