#include "lockstep/comm/rendezvous/registration.h"

#include <future>

#include "lockstep/comm/rendezvous/local_node.h"
#include "lockstep/comm/rendezvous/registration_record.h"
#include "lockstep/comm/rendezvous/shared_gpus.h"
#include "lockstep/comm/store/memory_store.h"
#include "tests/support/expect_error.h"

namespace registration_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

Deadline soon() { return Deadline::after(5s); }

Member member(int rank) {
  Member member;
  member.rank = rank;
  member.host = "host" + std::to_string(rank);
  member.node_id = "node" + std::to_string(rank / 2);
  member.address = "10.0.0." + std::to_string(rank);
  member.pid = 100 + rank;
  member.gpu = rank < 2 ? "" : rank == 2 ? "a" : "b";
  return member;
}

}  // namespace

TEST_CASE("every rank learns who the others are") {
  MemoryStore store;
  std::vector<std::future<std::optional<std::vector<Member>>>> ranks;
  for (const int rank : {2, 0, 3, 1}) {
    ranks.push_back(
        std::async(std::launch::async, [&, rank] { return register_rank(store, member(rank), 4, soon()); }));
  }
  for (auto& rank : ranks) {
    const std::vector<Member> members = rank.get().value();
    REQUIRE(members.size() == 4);
    for (int i = 0; i < 4; ++i) {
      const Member& seen = members[static_cast<std::size_t>(i)];
      CHECK(to_string(seen) == to_string(member(i)));
      CHECK(seen.node_id == member(i).node_id);
      CHECK(seen.address == member(i).address);
      CHECK(seen.gpu == member(i).gpu);
    }
  }
  wait_for_all_registered(store, member(0), 4, soon());
}

TEST_CASE("a second claimant of a rank is told who holds it, and the first goes on") {
  MemoryStore store;
  auto first = std::async(std::launch::async, [&] { return register_rank(store, member(0), 2, soon()); });
  store.get("registration/0", soon());
  Member second = member(0);
  second.host = "elsewhere";
  second.pid = 7;
  const TimePoint start = steady_clock().now();
  CHECK_ERROR(error_of([&] { register_rank(store, second, 2, soon()); }), ErrorKind::invalid_argument,
              "rank 0 is taken", "host host0, pid 100", "host elsewhere, pid 7");
  CHECK(steady_clock().now() - start < 4s);
  register_rank(store, member(1), 2, soon());
  CHECK(first.get().value().size() == 2);
}

TEST_CASE("different world sizes fail on every side, with both values") {
  MemoryStore store;
  auto first =
      std::async(std::launch::async, [&] { return error_of([&] { register_rank(store, member(0), 2, soon()); }); });
  store.get("registration/0", soon());
  const TimePoint start = steady_clock().now();
  const Error second = error_of([&] { register_rank(store, member(1), 3, soon()); });
  for (const Error& error : {second, first.get()}) {
    CHECK_ERROR(error, ErrorKind::invalid_argument, "rank 0 (host host0, pid 100) was started with 2",
                "rank 1 (host host1, pid 101) with 3");
  }
  CHECK(steady_clock().now() - start < 4s);
}

// fault: 16
TEST_CASE("different host timeouts fail on every side, with both values") {
  MemoryStore store;
  auto first =
      std::async(std::launch::async, [&] { return error_of([&] { register_rank(store, member(0), 2, soon()); }); });
  store.get("registration/0", soon());
  const RegistrationOptions other{.host_timeout = 7500ms};
  const Error second = error_of([&] { register_rank(store, member(1), 2, soon(), other); });
  for (const Error& error : {second, first.get()}) {
    CHECK_ERROR(error, ErrorKind::invalid_argument, "the host timeout (LOCKSTEP_HOST_TIMEOUT): rank 0",
                "was started with 3 s", "rank 1 (host host1, pid 101) with 7.5 s");
  }
}

TEST_CASE("ranks that do not come are named") {
  MemoryStore store;
  const Error error = error_of([&] { register_rank(store, member(1), 4, Deadline::after(30ms)); });
  CHECK_ERROR(error, ErrorKind::timeout, "rank 1 waited", "ranks 0, 2 and 3 did not join");
  CHECK(error.detail().rank == 1);
  CHECK(error.detail().peer == 0);
}

TEST_CASE("whoever comes after a rank has given up is told so") {
  MemoryStore store;
  CHECK(error_of([&] { register_rank(store, member(0), 2, Deadline::after(10ms)); }).kind() == ErrorKind::timeout);
  CHECK_ERROR(error_of([&] { register_rank(store, member(1), 2, soon()); }), ErrorKind::aborted,
              "rank 0 (host host0, pid 100) has given up", "rank 1 did not join");
}

TEST_CASE("a node's id is stable and splits by label") {
  CHECK(local_node_id("") == local_node_id(""));
  CHECK(local_node_id("a") != local_node_id("b"));
  for (const char* part : {"pid:[", "user:[", "ipc:[", "net:[", "uid:"}) CHECK(contains(local_node_id(""), part));
  CHECK_FALSE(first_interface_address().empty());
}

TEST_CASE("a registration of another rank than its place says is a lie that names it") {
  for (const int lie : {1'000'000, 0, -1}) {
    MemoryStore store;
    Registration record{member(1), 2, "12345678"};
    record.member.rank = lie;
    store.set("registration/1", encode(record), soon());
    const Error error = error_of([&] { register_rank(store, member(0), 2, soon()); });
    CHECK_ERROR(error, ErrorKind::corrupt_data, "rank 1's registration: the rank is " + std::to_string(lie));
    CHECK(error.detail().peer == 1);
  }
}

TEST_CASE("registrations and failures that nobody has written are corrupt") {
  Registration record{member(1), 2, "12345678"};
  record.member.interfaces.assign(100, {"eth", "10.0.0.1"});
  CHECK(decode_registration(encode(record), 1).member.interfaces.size() == 64);
  record.size = 0;
  CHECK_ERROR(error_of([&] { decode_registration(encode(record), 1); }), ErrorKind::corrupt_data,
              "the world size is 0");
  record.size = 2;
  record.member.pid = 0;
  CHECK_ERROR(error_of([&] { decode_registration(encode(record), 1); }), ErrorKind::corrupt_data,
              "the process id is 0");
  CHECK_ERROR(error_of([&] {
                decode_registration(encode(Registration{member(1), 2, ""}) + "x", 1);
              }),
              ErrorKind::corrupt_data, "1 trailing bytes");
}

TEST_CASE("of each GPU that several ranks use all are named") {
  std::vector<Member> members{member(0), member(1), member(2), member(3)};
  CHECK(shared_gpus(members).empty());  // ranks 0 and 1 do not know theirs
  members[3].gpu = members[1].gpu = "a";
  members.push_back(member(4));
  members.push_back(member(5));
  auto shared = shared_gpus(members);
  REQUIRE(shared.size() == 2);
  CHECK(shared[0].first == 1);
  CHECK(
      shared[0].second.starts_with("rank 1 (host host1, pid 101) and rank 2 (host host2, pid 102) and rank 3 (host "
                                   "host3, pid 103) use the same GPU, a: "));
  CHECK(shared[1].first == 4);
  CHECK(shared[1].second.find("rank 5 (host host5, pid 105) use the same GPU, b: ") != std::string::npos);
}

TEST_CASE("the members of a world are as many as they say, each in his place") {
  const std::vector<Registration> both = {{member(0), 2, "12345678"}, {member(1), 2, "87654321"}};
  const std::vector<Registration> told = decode_members(encode_members(both));
  REQUIRE(told.size() == 2);
  CHECK(told[1].process == "87654321");
  CHECK_ERROR(error_of([&] {
                decode_members(encode_members({both.data(), 1}));
              }),
              ErrorKind::corrupt_data, "the world size is 2");
  CHECK_ERROR(error_of([&] {
                decode_members(encode_members(std::vector<Registration>{both[1], both[0]}));
              }),
              ErrorKind::corrupt_data, "the rank is 1");
}

}  // namespace registration_test
