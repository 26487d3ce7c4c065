// Choosing among a host's network interfaces; the addresses of loopback stand for them.
#include "lockstep/comm/rendezvous/probe.h"

#include <doctest/doctest.h>

#include <chrono>

#include "lockstep/comm/net/wire.h"
#include "lockstep/comm/store/memory_store.h"
#include "tests/support/expect_error.h"
#include "tests/support/rank_threads.h"

namespace probe_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

Member member(int rank, const std::string& node, const std::vector<std::string>& addresses) {
  Member made;
  made.rank = rank;
  made.host = "host-" + node;
  made.node_id = node;
  for (const std::string& address : addresses) made.interfaces.push_back({"if" + address, address});
  made.address = addresses.front();
  return made;
}

// What every rank thinks of the members' addresses afterwards.
std::vector<std::vector<std::string>> probe(const std::vector<Member>& members) {
  MemoryStore store;
  const Token token = Token::generate();
  std::vector<std::vector<std::string>> addresses(members.size());
  run_ranks_or_throw(static_cast<int>(members.size()), [&](int rank) {
    std::vector<Member> own = members;
    choose_addresses({rank, 3, "job", token}, own, store, Deadline::after(20s));
    for (const Member& each : own) addresses[static_cast<std::size_t>(rank)].push_back(each.address);
  });
  return addresses;
}

}  // namespace

TEST_CASE("of the interfaces that all reach, the preferred one is taken unless another is twice as fast") {
  CHECK(choose_interface({{2ms}, {1500us}}) == 0);
  CHECK(choose_interface({{2ms}, {900us}}) == 1);
  CHECK(choose_interface({{1us, {"b"}}, {2ms}}) == 1);
  CHECK(choose_interface({{2ms}, {1us, {"b", "c"}}}) == 0);
  CHECK(choose_interface({{1us, {"b"}}, {1us, {"c"}}}) == -1);
  CHECK(choose_interface({}) == -1);
}

TEST_CASE("only several nodes with a choice need a probe") {
  CHECK_FALSE(needs_probe({member(0, "a", {"127.0.0.1", "127.0.0.2"}), member(1, "a", {"127.0.0.1"})}));
  CHECK_FALSE(needs_probe({member(0, "a", {"127.0.0.1"}), member(1, "b", {"127.0.0.2"})}));
  CHECK(needs_probe({member(0, "a", {"127.0.0.1"}), member(1, "b", {"127.0.0.2", "127.0.0.3"})}));
}

TEST_CASE("an address at which nobody answers is not taken, and all ranks learn which is") {
  // 198.51.100.1 is nobody's: for documentation.
  const std::vector<Member> members{member(0, "a", {"198.51.100.1", "127.0.0.2"}),
                                    member(1, "a", {"198.51.100.1", "127.0.0.2"}), member(2, "b", {"127.0.0.3"})};
  const std::vector<std::string> expected{"127.0.0.2", "127.0.0.2", "127.0.0.3"};
  for (const auto& addresses : probe(members)) CHECK((addresses == expected));
}

TEST_CASE("hosts that share no network are told so, on every rank") {
  const std::vector<Member> members{member(0, "a", {"198.51.100.1", "198.51.100.2"}), member(1, "b", {"127.0.0.3"})};
  MemoryStore store;
  const Token token = Token::generate();
  const auto errors = run_ranks(2, [&](int rank) {
    std::vector<Member> own = members;
    choose_addresses({rank, 3, "job", token}, own, store, Deadline::after(20s));
  });
  for (const auto& each : errors) {
    REQUIRE(each);
    CHECK_ERROR(error_of([&] { std::rethrow_exception(each); }), ErrorKind::timeout,
                "no address of host host-a can be reached from all other hosts",
                "198.51.100.1 (if198.51.100.1): not reached from host-b", "LOCKSTEP_IFNAME");
  }
}

TEST_CASE("a choice, a port or a round trip that cannot be is a lie that names its rank") {
  const std::vector<Member> members{member(0, "a", {"127.0.0.2", "127.0.0.3"}), member(1, "b", {"127.0.0.4"})};
  const auto hear = [&](const std::string& key, const Bytes& lie, int rank) {
    MemoryStore store;
    std::vector<Member> own = members;
    Bytes ports;
    for (int i = 0; i < 2; ++i) put_u32(ports, 1);
    store.set("probe/ports/0", ports, Deadline::after(20s));
    store.set(key, lie, Deadline::after(20s));
    return error_of([&] { choose_addresses({rank, 3, "job", Token::generate()}, own, store, Deadline::after(20s)); });
  };
  Bytes choice, ports, result;
  put_u32(choice, 3);
  put_u32(ports, 65536);
  put_u64(result, ~std::uint64_t{0} - 1);
  CHECK_ERROR(hear("probe/choice/0", choice, 1), ErrorKind::corrupt_data, "rank 0's choice of an address",
              "number of the interface is 3; expected 0 to 2");
  CHECK_ERROR(hear("probe/ports/0", ports, 1), ErrorKind::corrupt_data, "rank 0's ports for a probe", "65536");
  CHECK_ERROR(hear("probe/result/0/1", result, 0), ErrorKind::corrupt_data, "rank 1's result of a probe");
}

}  // namespace probe_test
