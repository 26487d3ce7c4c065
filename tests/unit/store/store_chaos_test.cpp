// A TcpStore behind a bad network: every verb is done exactly once, or ends in time with an error that says why.
#include <doctest/doctest.h>

#include <future>
#include <string>
#include <vector>

#include "lockstep/comm/store/store_machine.h"
#include "lockstep/comm/store/store_server.h"
#include "lockstep/comm/store/tcp_store.h"
#include "tests/support/chaos_proxy.h"
#include "tests/support/expect_error.h"
#include "tests/support/seconds_of.h"

namespace store_chaos_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

Deadline soon() { return Deadline::after(20s); }

struct Served {
  explicit Served(StoreServerLimits limits = {})
      : server(Endpoint{"127.0.0.1", 0}, {.token = token, .job_id = "job", .limits = limits}) {}

  TcpStore client(const Endpoint& endpoint) const {
    return TcpStore(endpoint,
                    {.token = token, .job_id = "job", .channel = Channel::store, .mine = local_identity(1, 2, 0)});
  }
  TcpStore direct_client() const { return client(server.address().endpoint()); }

  Token token = Token::generate();
  StoreServer server;
};

// Calls every verb once; what each returned is what it returns when it is done exactly once.
void use_all_verbs(Store& store, std::int64_t& count) {
  store.set("text", "before", soon());
  CHECK(store.add("count", 1, soon()) == ++count);
  CHECK(store.compare_set("text", "before", "after", soon()) == "after");
  CHECK(store.get("text", soon()) == "after");
  CHECK(store.wait({"text", "count"}, soon()).empty());
  CHECK(store.check({"text"}, soon()));
  CHECK(store.remove("text", soon()));
  CHECK_FALSE(store.check({"text"}, soon()));
  CHECK(store.add("count", 1, soon()) == ++count);
}

double number_behind(const std::string& words, const Error& error) {
  const std::string text = error.what();
  return std::stod(text.substr(text.find(words) + words.size()));
}

// How many bytes use_all_verbs() moves over its one connection, each way at most.
constexpr std::uint64_t kMostBytes = 1000;

}  // namespace

// fault: 15
TEST_CASE("a connection that is cut at any byte, of any verb, costs nothing") {
  Served served;
  std::int64_t count = 0;
  int reconnected = 0;
  for (std::uint64_t at = 0; at < kMostBytes; at += 2) {
    for (const Way way : {Way::to_server, Way::to_client}) {
      CAPTURE(at);
      CAPTURE(static_cast<int>(way));
      const Fault::Kind kind = at % 4 == 0 ? Fault::Kind::cut : Fault::Kind::reset;
      ChaosProxy proxy(served.server.address().endpoint(), {.seed = at, .fault = [&](int connection) {
                                                              return connection == 0 ? Fault{kind, way, at} : Fault();
                                                            }});
      TcpStore store = served.client(proxy.endpoint());
      use_all_verbs(store, count);
      reconnected += proxy.connections() - 1;
    }
  }
  CHECK(served.direct_client().get("count", soon()) == std::to_string(count));
  CHECK(reconnected > 200);
}

// fault: 15
TEST_CASE("connections that are cut again and again, in small pieces, cost nothing") {
  Served served;
  std::int64_t count = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ChaosPlan plan{.seed = seed, .largest_piece_bytes = 50};
    plan.fault = [&](int connection) {
      const std::uint64_t some = seed * 37 + static_cast<std::uint64_t>(connection) * 101;
      const Fault::Kind kind = connection % 3 == 0 ? Fault::Kind::reset : Fault::Kind::cut;
      return some % 2 == 0 ? Fault{kind, Way::to_client, 170 + some % 150}
                           : Fault{kind, Way::to_server, 250 + some % 300};
    };
    ChaosProxy proxy(served.server.address().endpoint(), plan);
    TcpStore store = served.client(proxy.endpoint());
    for (int round = 0; round < 4; ++round) use_all_verbs(store, count);
    CHECK(proxy.connections() > 5);
  }
  CHECK(served.direct_client().get("count", soon()) == std::to_string(count));
}

// fault: 15
TEST_CASE("a large value survives cuts on its way there and back") {
  Served served;
  const Bytes large(kMaxStoreValueBytes, 'x');
  ChaosPlan plan;
  plan.fault = [](int connection) {
    return connection < 4 ? Fault{Fault::Kind::cut, connection < 2 ? Way::to_server : Way::to_client, 1'000'000}
                          : Fault();
  };
  ChaosProxy proxy(served.server.address().endpoint(), plan);
  TcpStore store = served.client(proxy.endpoint());
  store.set("large", large, soon());
  CHECK(store.get("large", soon()) == large);
  CHECK(store.compare_set("large", "no match", "", soon()) == large);
  CHECK(proxy.connections() == 5);
}

// fault: 15
TEST_CASE("several threads that add over connections that break never lose one and never add twice") {
  Served served;
  ChaosPlan plan{.seed = 3};
  plan.fault = [](int connection) {
    return Fault{Fault::Kind::reset, connection % 2 == 0 ? Way::to_client : Way::to_server,
                 400 + static_cast<std::uint64_t>(connection) * 7};
  };
  ChaosProxy proxy(served.server.address().endpoint(), plan);
  TcpStore store = served.client(proxy.endpoint());
  std::vector<std::future<void>> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.push_back(std::async(std::launch::async, [&] {
      for (int i = 0; i < 50; ++i) store.add("n", 1, soon());
    }));
  }
  for (auto& thread : threads) thread.get();
  CHECK(served.direct_client().get("n", soon()) == "200");
  CHECK(proxy.connections() > 8);
}

// fault: 15
TEST_CASE("a get and a wait that block survive cuts, and end at their deadline") {
  Served served;
  ChaosProxy proxy(served.server.address().endpoint(), {});
  TcpStore store = served.client(proxy.endpoint());
  auto get = std::async(std::launch::async, [&] { return store.get("late", soon()); });
  auto wait = std::async(std::launch::async, [&] { return store.wait({"late", "later"}, soon()); });
  auto in_vain =
      std::async(std::launch::async, [&] { return error_of([&] { store.get("never", Deadline::after(500ms)); }); });
  const Deadline limit = soon();
  for (int cuts = 1; cuts <= 3; ++cuts) {
    while (proxy.connections() < 3 * cuts && !limit.expired()) std::this_thread::sleep_for(1ms);
    if (cuts < 3) proxy.cut_all();
  }
  const Error timeout = in_vain.get();
  CHECK_ERROR(timeout, ErrorKind::timeout, "no process has set 'never'");
  CHECK(number_behind("store get timed out after ", timeout) >= 0.5);
  proxy.cut_all();
  TcpStore other = served.direct_client();
  other.set("late", "v", soon());
  other.set("later", "v", soon());
  CHECK(get.get() == "v");
  CHECK(wait.get().empty());
}

TEST_CASE("a flipped bit anywhere is noticed and, once the store is known, repaired") {
  Served served({.handshake = 100ms});
  constexpr std::uint64_t kHandshakeBytes = 44 + 191;  // the client's, at most
  std::int64_t count = 0;
  int failures = 0;
  for (std::uint64_t at = 0; at < kMostBytes; at += at < kHandshakeBytes ? 7 : 3) {
    for (const Way way : {Way::to_server, Way::to_client}) {
      CAPTURE(at);
      CAPTURE(static_cast<int>(way));
      ChaosPlan plan{.seed = at};
      plan.fault = [&](int connection) { return connection == 1 ? Fault{Fault::Kind::flip, way, at} : Fault(); };
      ChaosProxy proxy(served.server.address().endpoint(), plan);
      TcpStore store = served.client(proxy.endpoint());
      store.connect(soon());
      proxy.cut_all();
      try {
        store.check({"count"}, Deadline::after(1s));
      } catch (const Error& error) {
        ++failures;
        CHECK(at < kHandshakeBytes);  // where a flip can look like another version, or like a longer message
        const bool expected = error.kind() == ErrorKind::invalid_argument || error.kind() == ErrorKind::timeout;
        CHECK(expected);
      }
      use_all_verbs(store, count);
    }
  }
  CHECK(failures < 12);
  CHECK(served.direct_client().get("count", soon()) == std::to_string(count));
}

// fault: 14
TEST_CASE("behind a frozen network every verb ends at its deadline and names the store") {
  Served served;
  ChaosProxy proxy(served.server.address().endpoint(), {});
  TcpStore store = served.client(proxy.endpoint());
  store.set("k", "v", soon());
  proxy.freeze();
  const auto limit = [] { return Deadline::after(200ms); };
  std::vector<double> waits;
  const auto timed = [&](const std::string& verb, auto call) {
    CAPTURE(verb);
    waits.push_back(seconds_of([&] {
      CHECK_ERROR(error_of(call), ErrorKind::timeout, "store " + verb + " of 'k' failed after ",
                  "the store server at " + to_string(proxy.endpoint()) + " has not answered for ", "attempt");
    }));
    CHECK(waits.back() >= 0.2);
    CHECK(waits.back() < 10);
  };
  timed("get", [&] { store.get("k", limit()); });
  timed("set", [&] { store.set("k", "v", limit()); });
  timed("set", [&] { store.set("k", Bytes(kMaxStoreValueBytes, 'x'), limit()); });
  timed("add", [&] { store.add("k", 1, limit()); });
  timed("compare_set", [&] { store.compare_set("k", "v", "w", limit()); });
  timed("check", [&] { store.check({"k"}, limit()); });
  timed("remove", [&] { store.remove("k", limit()); });
  waits.push_back(seconds_of([&] { CHECK(store.wait({"k"}, limit()) == std::vector<std::string>{"k"}); }));
  TcpStore newcomer = served.client(proxy.endpoint());
  waits.push_back(
      seconds_of([&] { CHECK(error_of([&] { newcomer.get("k", limit()); }).kind() == ErrorKind::timeout); }));
  CHECK(median_of(waits) < 0.3 + 0.3);  // the promise is 0.3; the rest is for a busy machine
  proxy.thaw();
  CHECK(store.check({"k"}, soon()) == newcomer.check({"k"}, soon()));
}

TEST_CASE("a store that cannot be reached is tried until the deadline, and the error says since when and how often") {
  Served served;
  ChaosProxy proxy(served.server.address().endpoint(), {});
  TcpStore store = served.client(proxy.endpoint());
  store.set("k", "v", soon());
  proxy.refuse();
  proxy.cut_all();
  const TimePoint start = steady_clock().now();
  const Error first = error_of([&] { store.add("k", 1, Deadline::after(400ms)); });
  CHECK(steady_clock().now() - start >= 400ms);
  CHECK(steady_clock().now() - start < 10s);
  CHECK_ERROR(first, ErrorKind::timeout, "store add of 'k' failed after ", to_string(proxy.endpoint()),
              "has not answered for ", " attempts (");
  CHECK(number_behind("failed after ", first) >= 0.4);
  CHECK(number_behind("has not answered for ", first) >= 0.4);
  CHECK(first.detail().operation == "add");
  CHECK(proxy.connections() > 1);
  CHECK(proxy.connections() < 30);  // it pauses between attempts
  const Error second = error_of([&] { store.set("k", "v", Deadline::after(600ms)); });
  CHECK_ERROR(second, ErrorKind::timeout, "failed after ", "has not answered for ");
  CHECK(number_behind("failed after ", second) >= 0.6);
  CHECK(number_behind("has not answered for ", second) >= 1.0);  // since the first failure
}

TEST_CASE("a store whose host refuses is gone at once, also for those who wait") {
  Served served;
  auto proxy = std::make_unique<ChaosProxy>(served.server.address().endpoint(), ChaosPlan{});
  TcpStore store = served.client(proxy->endpoint());
  store.set("k", "v", soon());
  auto waiting = std::async(std::launch::async, [&] { return error_of([&] { store.get("never", soon()); }); });
  CHECK(waiting.wait_for(50ms) == std::future_status::timeout);
  const TimePoint start = steady_clock().now();
  proxy.reset();
  CHECK_ERROR(waiting.get(), ErrorKind::peer_lost, "store get of 'never'", "is gone", "refused");
  CHECK_ERROR(error_of([&] { store.set("k", "v", soon()); }), ErrorKind::peer_lost, "store set of 'k'", "is gone");
  CHECK(steady_clock().now() - start < 10s);  // their own deadlines are after 20 s
}

TEST_CASE("a slow network is no reason for an error") {
  Served served;
  std::int64_t count = 0;
  ChaosProxy proxy(served.server.address().endpoint(),
                   {.seed = 5, .delay = 5ms, .jitter = 10ms, .bytes_per_second = 20'000, .largest_piece_bytes = 100});
  TcpStore store = served.client(proxy.endpoint());
  use_all_verbs(store, count);
  CHECK(proxy.connections() == 1);
}

TEST_CASE("a half-closed connection is replaced") {
  Served served;
  std::int64_t count = 0;
  for (const Way way : {Way::to_server, Way::to_client}) {
    for (std::uint64_t at = 240; at < kMostBytes; at += 61) {
      ChaosPlan plan{.seed = at};
      plan.fault = [&](int connection) { return connection == 0 ? Fault{Fault::Kind::half_close, way, at} : Fault(); };
      ChaosProxy proxy(served.server.address().endpoint(), plan);
      TcpStore store = served.client(proxy.endpoint());
      use_all_verbs(store, count);
    }
  }
  CHECK(served.direct_client().get("count", soon()) == std::to_string(count));
}

TEST_CASE("a last will outlives the cuts of its connection, as long as its client asks for anything") {
  Served served;
  ChaosProxy proxy(served.server.address().endpoint(), {.seed = 3});
  TcpStore direct = served.direct_client();
  TcpStore store = served.client(proxy.endpoint());
  store.last_will("dead", "rank 1", soon());
  for (int i = 0; i < 3; ++i) {
    proxy.cut_all();
    for (int turn = 0; turn < 8; ++turn) {  // longer than a will waits
      CHECK_FALSE(direct.check({"dead"}, soon()));
      CHECK(store.wait({"never"}, Deadline::after(100ms)).size() == 1);
    }
  }
  CHECK(served.server.wait_for_wills(Deadline::after(1ms)) == false);
  store.last_will("dead", "", soon());
  CHECK(served.server.wait_for_wills(soon()));
}

TEST_CASE("a last will that is refused leaves the earlier one, also over a new connection") {
  Served served;
  ChaosProxy proxy(served.server.address().endpoint(), {.seed = 3});
  TcpStore direct = served.direct_client();
  {
    TcpStore store = served.client(proxy.endpoint());
    store.last_will("dead", "rank 1", soon());
    const Bytes large(StoreMachine::kMaxWillBytes + 1, 'x');
    CHECK_ERROR(error_of([&] { store.last_will("dead", large, soon()); }), ErrorKind::invalid_argument);
    proxy.cut_all();
    store.set("k", "v", soon());  // which connects again
  }
  CHECK(direct.get("dead", soon()) == "rank 1");
}

}  // namespace store_chaos_test
