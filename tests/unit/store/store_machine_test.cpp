#include "lockstep/comm/store/store_machine.h"

#include <doctest/doctest.h>

#include "tests/support/expect_error.h"

namespace store_machine_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint kStart{1000s};

StoreRequest make(StoreOp op, std::vector<std::string> keys, std::uint64_t id = 0) {
  StoreRequest request;
  request.op = op;
  request.keys = std::move(keys);
  request.id = id;
  return request;
}

StoreRequest make_set(const std::string& key, const Bytes& value, std::uint64_t id) {
  StoreRequest request = make(StoreOp::set, {key}, id);
  request.value = value;
  return request;
}

}  // namespace

TEST_CASE("a set answers its sender and all that waited for the key") {
  StoreMachine machine;
  CHECK(machine.handle(1, make(StoreOp::get, {"k"}, 10), kStart).empty());
  CHECK(machine.handle(2, make(StoreOp::wait, {"k"}, 11), kStart).empty());
  CHECK(machine.handle(3, make(StoreOp::get, {"other"}, 12), kStart).empty());
  const auto replies = machine.handle(4, make_set("k", "v", 13), kStart);
  REQUIRE(replies.size() == 3);
  CHECK(replies[0].to == 4);
  CHECK(replies[0].reply.id == 13);
  CHECK(replies[1].to == 1);
  CHECK(replies[1].reply.value == "v");
  CHECK(replies[2].to == 2);
  CHECK(machine.waiting() == 1);
}

TEST_CASE("a request that is sent again is answered again but not done again") {
  StoreMachine machine;
  StoreRequest add = make(StoreOp::add, {"n"}, 5);
  add.client = 77;
  add.delta = 1;
  CHECK(machine.handle(1, add, kStart).at(0).reply.value == "1");
  const auto again = machine.handle(2, add, kStart);
  REQUIRE(again.size() == 1);
  CHECK(again[0].to == 2);
  CHECK(again[0].reply.value == "1");
  add.client = 78;  // another client's fifth request
  CHECK(machine.handle(3, add, kStart).at(0).reply.value == "2");

  StoreRequest late = make_set("k", "old", 6);
  late.client = 77;
  machine.handle(1, late, kStart);
  machine.handle(2, make_set("k", "new", 7), kStart);
  machine.handle(1, late, kStart);
  CHECK(machine.handle(1, make(StoreOp::get, {"k"}), kStart).at(0).reply.value == "new");
}

TEST_CASE("waiting ends exactly at its time, with the keys that are missing") {
  StoreMachine machine;
  StoreRequest wait = make(StoreOp::wait, {"a", "b", "c"}, 1);
  wait.timeout = 3s;
  machine.handle(1, wait, kStart);
  StoreRequest longer = make(StoreOp::get, {"a"}, 2);
  longer.timeout = 5s;
  machine.handle(1, longer, kStart);
  CHECK(machine.handle(1, make(StoreOp::get, {"never"}, 3), kStart).empty());
  CHECK(machine.next_expiry() == kStart + 3s);
  machine.handle(2, make_set("b", "", 4), kStart + 1s);
  CHECK(machine.expire(kStart + 3s - 1ns).empty());
  const auto replies = machine.expire(kStart + 3s);
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].reply.status == StoreStatus::missing);
  CHECK(replies[0].reply.keys == std::vector<std::string>{"a", "c"});
  CHECK(machine.next_expiry() == kStart + 5s);
  CHECK(machine.expire(kStart + 5s).size() == 1);
  CHECK_FALSE(machine.next_expiry());
  CHECK(machine.waiting() == 1);
}

TEST_CASE("a wait with no time left answers at once") {
  StoreMachine machine;
  StoreRequest wait = make(StoreOp::wait, {"a"}, 1);
  wait.timeout = 0s;
  const auto replies = machine.handle(1, wait, kStart);
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].reply.status == StoreStatus::missing);
}

TEST_CASE("a closed connection leaves nothing behind") {
  StoreMachine machine;
  StoreRequest wait = make(StoreOp::wait, {"a", "b"}, 1);
  wait.timeout = 3s;
  machine.handle(1, wait, kStart);
  machine.handle(1, make(StoreOp::get, {"a"}, 2), kStart);
  machine.handle(2, make(StoreOp::get, {"a"}, 3), kStart);
  machine.drop(1, kStart);
  machine.drop(1, kStart);
  CHECK(machine.waiting() == 1);
  CHECK_FALSE(machine.next_expiry());
  CHECK(machine.handle(3, make_set("a", "", 4), kStart).size() == 2);
}

TEST_CASE("waiters of one connection are limited, and the limit is in the text") {
  StoreMachine machine;
  for (std::size_t i = 0; i < StoreMachine::kMaxWaitersPerConnection; ++i) {
    CHECK(machine.handle(1, make(StoreOp::get, {"k"}, i), kStart).empty());
  }
  const auto replies = machine.handle(1, make(StoreOp::get, {"k"}, 1), kStart);
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].reply.status == StoreStatus::error);
  CHECK(contains(replies[0].reply.value, "4096"));
  CHECK(machine.handle(2, make(StoreOp::get, {"k"}, 1), kStart).empty());
}

TEST_CASE("a late copy of a request that has ended is not done") {
  StoreMachine machine;
  StoreRequest add = make(StoreOp::add, {"n"}, 5);
  add.client = 77;
  add.delta = 1;
  StoreRequest next = add;
  next.id = 6;
  next.ended = 6;
  CHECK(machine.handle(1, next, kStart).at(0).reply.value == "1");
  const auto replies = machine.handle(1, add, kStart);  // the first copy of 5, which the client has given up
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].reply.status == StoreStatus::error);
  CHECK(contains(replies[0].reply.value, "no longer waits for this request"));
  CHECK(machine.handle(1, make(StoreOp::get, {"n"}), kStart).at(0).reply.value == "1");
}

TEST_CASE("a change that may have been done, and was forgotten, is refused with what to do") {
  StoreMachine machine;
  StoreRequest add = make(StoreOp::add, {"n"}, 1);
  add.client = 77;
  add.delta = 1;
  machine.handle(1, add, kStart);
  const TimePoint later = kStart + ReplyCache::kKeptFor;
  add.age = ReplyCache::kKeptFor;
  const auto replies = machine.handle(2, add, later);
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].reply.status == StoreStatus::error);
  CHECK(replies[0].reply.kind == ErrorKind::internal);
  for (const char* part : {"add", "'n'", "no record of its result", "read the key"}) {
    CHECK(contains(replies[0].reply.value, part));
  }
  CHECK(machine.handle(1, make(StoreOp::get, {"n"}), later).at(0).reply.value == "1");
}

TEST_CASE("a last will is carried out a moment after its connection has closed, unless it was withdrawn or renewed") {
  const auto will = [](const std::string& key, const Bytes& value, std::uint64_t client) {
    StoreRequest request = make(StoreOp::last_will, {key});
    request.client = client;
    request.value = value;
    return request;
  };
  const auto value_of = [](StoreMachine& machine, const std::string& key, TimePoint now) {
    const auto replies = machine.handle(9, make(StoreOp::get, {key}), now);
    return replies.empty() ? Bytes("(none)") : replies[0].reply.value;
  };
  constexpr TimePoint kDue = kStart + StoreMachine::kWillDelay;
  StoreMachine machine;
  for (std::uint64_t client = 1; client <= 4; ++client) {
    const auto replies = machine.handle(client, will("died", std::to_string(client), client), kStart);
    REQUIRE(replies.size() == 1);
    CHECK(replies[0].reply.status == StoreStatus::ok);
  }
  CHECK(machine.wills() == 4);
  CHECK(machine.oldest_will() + 4 == machine.next_will());
  machine.handle(1, will("died", "", 1), kStart);  // withdrawn
  for (ConnectionId connection = 1; connection <= 3; ++connection) machine.drop(connection, kStart);
  CHECK(machine.wills() == 1);
  CHECK(machine.oldest_will() + 1 == machine.next_will());
  CHECK(machine.next_expiry() == kDue);
  machine.handle(12, will("died", "of 2", 2), kStart);  // over a new connection: it is no later one
  CHECK(machine.wills() == 2);
  CHECK(machine.oldest_will() + 3 == machine.next_will());
  CHECK(machine.handle(5, make(StoreOp::get, {"died"}, 7), kStart).empty());
  CHECK(machine.expire(kDue - 1ns).empty());
  const auto replies = machine.expire(kDue);
  REQUIRE(replies.size() == 1);  // who waits is woken
  CHECK(replies[0].to == 5);
  CHECK(replies[0].reply.value == "3");
  // The first word stays.
  machine.drop(4, kDue);
  machine.expire(kDue + StoreMachine::kWillDelay);
  CHECK(value_of(machine, "died", kDue) == "3");
  CHECK(machine.wills() == 1);
  CHECK_FALSE(machine.next_expiry());
}

TEST_CASE("last wills are limited, and the limit is in the text") {
  StoreMachine machine;
  StoreRequest request = make(StoreOp::last_will, {"k"});
  request.value = Bytes(StoreMachine::kMaxWillBytes + 1, 'x');
  CHECK(contains(machine.handle(1, request, kStart).at(0).reply.value, "at most 4096 bytes"));
  request.value = Bytes(1, 'x');
  for (std::size_t i = 0; i < StoreMachine::kMaxWillsPerConnection; ++i) {
    request.keys = {std::to_string(i)};
    CHECK(machine.handle(1, request, kStart).at(0).reply.status == StoreStatus::ok);
  }
  request.keys = {"one more"};
  CHECK(contains(machine.handle(1, request, kStart).at(0).reply.value, "is 64 last wills"));
}

}  // namespace store_machine_test
