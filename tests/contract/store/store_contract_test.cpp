// One suite for every Store: memory, file and TCP, each plain and behind a prefix.
#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "lockstep/comm/store/file_store.h"
#include "lockstep/comm/store/memory_store.h"
#include "lockstep/comm/store/prefix_store.h"
#include "lockstep/comm/store/store_server.h"
#include "lockstep/comm/store/tcp_store.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace store_contract_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

Deadline soon() { return Deadline::after(20s); }

// Several clients of one store, as several processes would have them.
class StoreWorld {
 public:
  virtual ~StoreWorld() = default;
  virtual std::shared_ptr<Store> client() = 0;
};

class MemoryWorld final : public StoreWorld {
 public:
  std::shared_ptr<Store> client() override { return store_; }

 private:
  std::shared_ptr<Store> store_ = std::make_shared<MemoryStore>();
};

class FileWorld final : public StoreWorld {
 public:
  std::shared_ptr<Store> client() override { return std::make_shared<FileStore>(directory_ / "store", "run", soon()); }

 private:
  TemporaryDirectory directory_;
  std::shared_ptr<Store> keeper_ = client();  // so that the file outlives the other clients
};

class TcpWorld final : public StoreWorld {
 public:
  std::shared_ptr<Store> client() override {
    HandshakeSettings settings{
        .token = token_, .job_id = "job", .channel = Channel::store, .mine = local_identity(0, 1, 0)};
    return std::make_shared<TcpStore>(server_.address().endpoint(), settings);
  }

 private:
  Token token_ = Token::generate();
  StoreServer server_{{"127.0.0.1", 0}, {.token = token_, .job_id = "job"}};
};

class PrefixWorld final : public StoreWorld {
 public:
  explicit PrefixWorld(std::unique_ptr<StoreWorld> inner) : inner_(std::move(inner)) {}
  std::shared_ptr<Store> client() override { return std::make_shared<PrefixStore>(inner_->client(), "some/prefix"); }

 private:
  std::unique_ptr<StoreWorld> inner_;
};

// What a wait names at its deadline, once that was late enough for the store to answer.
std::vector<std::string> missing_of(Store& store, const std::vector<std::string>& keys) {
  const Deadline limit = soon();
  std::vector<std::string> missing = keys;
  for (auto timeout = 10ms; missing == keys && !limit.expired(); timeout *= 2) {
    missing = store.wait(keys, Deadline::after(timeout));
  }
  return missing;
}

struct Kind {
  const char* name;
  std::function<std::unique_ptr<StoreWorld>()> make;
  std::size_t prefix_bytes = 0;
};

const Kind kKinds[] = {
    {"memory", [] { return std::make_unique<MemoryWorld>(); }},
    {"file", [] { return std::make_unique<FileWorld>(); }},
    {"tcp", [] { return std::make_unique<TcpWorld>(); }},
    {"prefix over memory", [] { return std::make_unique<PrefixWorld>(std::make_unique<MemoryWorld>()); }, 12},
    {"prefix over file", [] { return std::make_unique<PrefixWorld>(std::make_unique<FileWorld>()); }, 12},
    {"prefix over tcp", [] { return std::make_unique<PrefixWorld>(std::make_unique<TcpWorld>()); }, 12},
};

template <typename Body>
void for_each_store(Body body) {
  for (const Kind& kind : kKinds) {
    SUBCASE(kind.name) {
      const std::unique_ptr<StoreWorld> world = kind.make();
      body(*world, kind);
    }
  }
}

double seconds_of(const std::function<void()>& call) {
  const TimePoint start = steady_clock().now();
  call();
  return seconds(steady_clock().now() - start);
}

}  // namespace

// feature: B-01
TEST_CASE("what one client sets another gets") {
  for_each_store([](StoreWorld& world, const Kind&) {
    const auto a = world.client();
    const auto b = world.client();
    const Bytes odd("\0\n\xff value", 9);
    a->set("key", "one", soon());
    CHECK(b->get("key", soon()) == "one");
    b->set("key", odd, soon());
    CHECK(a->get("key", soon()) == odd);
    a->set("empty", "", soon());
    CHECK(b->get("empty", soon()).empty());
    a->set(Bytes("\0k", 2), "x", soon());
    CHECK(b->get(Bytes("\0k", 2), soon()) == "x");
  });
}

// feature: B-01
TEST_CASE("add counts, also from text, and refuses what is no number") {
  for_each_store([](StoreWorld& world, const Kind&) {
    const auto store = world.client();
    CHECK(store->add("n", 5, soon()) == 5);
    CHECK(store->add("n", -7, soon()) == -2);
    CHECK(store->get("n", soon()) == "-2");
    store->set("n", "40", soon());
    CHECK(world.client()->add("n", 2, soon()) == 42);
    store->set("word", "forty", soon());
    CHECK_ERROR(error_of([&] { store->add("word", 1, soon()); }), ErrorKind::invalid_argument, "word'", "'forty'",
                "not a 64-bit integer");
    store->set("n", "9223372036854775807", soon());
    CHECK_ERROR(error_of([&] { store->add("n", 1, soon()); }), ErrorKind::invalid_argument, "overflow");
    CHECK(store->get("n", soon()) == "9223372036854775807");
  });
}

// feature: B-01
TEST_CASE("compare_set") {
  for_each_store([](StoreWorld& world, const Kind&) {
    const auto store = world.client();
    CHECK(store->compare_set("k", "something", "x", soon()) == "something");
    CHECK_FALSE(store->check({"k"}, soon()));
    CHECK(store->compare_set("k", "", "first", soon()) == "first");
    CHECK(store->compare_set("k", "", "second", soon()) == "first");
    CHECK(store->compare_set("k", "first", "second", soon()) == "second");
    CHECK(world.client()->get("k", soon()) == "second");
  });
}

// feature: B-01
TEST_CASE("check and remove") {
  for_each_store([](StoreWorld& world, const Kind&) {
    const auto a = world.client();
    const auto b = world.client();
    CHECK_FALSE(a->remove("k", soon()));
    a->set("k", "v", soon());
    CHECK(b->check({"k"}, soon()));
    CHECK_FALSE(b->check({"k", "other"}, soon()));
    CHECK(b->check({}, soon()));
    CHECK(b->remove("k", soon()));
    CHECK_FALSE(a->check({"k"}, soon()));
    CHECK(a->compare_set("k", "", "again", soon()) == "again");
  });
}

TEST_CASE("a blocking get is woken by set, by add and by compare_set") {
  for_each_store([](StoreWorld& world, const Kind&) {
    const auto waiting = world.client();
    const auto setting = world.client();
    const std::function<void(const std::string&)> ways[] = {
        [&](const std::string& key) { setting->set(key, "7", soon()); },
        [&](const std::string& key) { setting->add(key, 7, soon()); },
        [&](const std::string& key) { setting->compare_set(key, "", "7", soon()); },
    };
    int number = 0;
    for (const auto& way : ways) {
      const std::string key = "wake/" + std::to_string(number++);
      auto getting = std::async(std::launch::async, [&] { return waiting->get(key, soon()); });
      CHECK(getting.wait_for(15ms) == std::future_status::timeout);
      way(key);
      CHECK(getting.get() == "7");
    }
  });
}

TEST_CASE("a get that blocks in one thread holds up no other thread") {
  for_each_store([](StoreWorld& world, const Kind&) {
    const auto store = world.client();
    auto getting = std::async(std::launch::async, [&] { return store->get("late", soon()); });
    CHECK(getting.wait_for(10ms) == std::future_status::timeout);
    for (int i = 0; i < 20; ++i) store->set("other", std::to_string(i), soon());
    CHECK(store->get("other", soon()) == "19");
    CHECK(getting.wait_for(0ms) == std::future_status::timeout);
    store->set("late", "done", soon());
    CHECK(getting.get() == "done");
  });
}

// feature: B-01
TEST_CASE("wait returns once all keys are there, whatever their order, and names those that are not") {
  for_each_store([](StoreWorld& world, const Kind&) {
    const auto store = world.client();
    const std::vector<std::string> keys{"a", "b", "c"};
    auto waiting = std::async(std::launch::async, [&] { return store->wait(keys, soon()); });
    const auto other = world.client();
    for (const char* key : {"c", "b"}) other->set(key, "", soon());
    CHECK(waiting.wait_for(15ms) == std::future_status::timeout);
    CHECK(missing_of(*store, keys) == std::vector<std::string>{"a"});
    other->set("a", "", soon());
    CHECK(waiting.get().empty());
    CHECK(store->wait({}, soon()).empty());
    CHECK(missing_of(*store, {"a", "x", "y"}) == std::vector<std::string>{"x", "y"});
  });
}

TEST_CASE("a key that is removed while others are awaited is awaited again") {
  for_each_store([](StoreWorld& world, const Kind&) {
    const auto store = world.client();
    store->set("a", "", soon());
    auto waiting = std::async(std::launch::async, [&] { return store->wait({"a", "b"}, soon()); });
    CHECK(waiting.wait_for(10ms) == std::future_status::timeout);
    store->remove("a", soon());
    store->set("b", "", soon());
    CHECK(waiting.wait_for(30ms) == std::future_status::timeout);
    store->set("a", "", soon());
    CHECK(waiting.get().empty());
  });
}

TEST_CASE("a get that nobody answers ends at its deadline and names the key") {
  for_each_store([](StoreWorld& world, const Kind&) {
    const auto store = world.client();
    store->set("exists", "", soon());
    Error error(ErrorKind::internal, "");
    const double waited = seconds_of([&] { error = error_of([&] { store->get("missing", Deadline::after(60ms)); }); });
    CHECK_ERROR(error, ErrorKind::timeout, "missing'", "no process has set");
    CHECK(waited >= 0.06);
    CHECK(waited < 2);
    CHECK(error_of([&] { store->get("missing", Deadline::after(-1s)); }).kind() == ErrorKind::timeout);
    CHECK(store->get("exists", soon()).empty());
  });
}

// feature: B-01
TEST_CASE("limits are stated, and a value of the largest size makes the round trip") {
  for_each_store([](StoreWorld& world, const Kind& kind) {
    const auto store = world.client();
    const std::string longest(kMaxStoreKeyBytes - kind.prefix_bytes, 'k');
    const Bytes largest(kMaxStoreValueBytes, 'v');
    store->set(longest, largest, soon());
    CHECK(world.client()->get(longest, soon()) == largest);
    CHECK(store->compare_set(longest, largest, "small", soon()) == "small");

    const auto refused = [&](const std::function<void()>& call, const char* limit) {
      CHECK_ERROR(error_of(call), ErrorKind::invalid_argument, limit);
    };
    refused([&] { store->set("k", largest + "v", soon()); }, "8388608");
    refused([&] { store->compare_set("k", "", largest + "v", soon()); }, "8388608");
    refused([&] { store->set("", "v", soon()); }, "1 to 8192 bytes");
    refused([&] { store->get("", soon()); }, "1 to 8192 bytes");
    const std::string too_long = longest + "k";
    refused([&] { store->set(too_long, "v", soon()); }, "8192");
    refused([&] { store->get(too_long, soon()); }, "8192");
    refused([&] { store->add(too_long, 1, soon()); }, "8192");
    refused([&] { store->wait({"ok", too_long}, soon()); }, "8192");
    refused([&] { store->check({too_long}, soon()); }, "8192");
    refused([&] { store->remove(too_long, soon()); }, "8192");
    refused([&] { store->compare_set(too_long, "", "", soon()); }, "8192");
    CHECK_FALSE(store->check({"k"}, soon()));
  });
}

TEST_CASE("eight threads that add never lose one") {
  for_each_store([](StoreWorld& world, const Kind&) {
    constexpr int kThreads = 8;
    constexpr int kAdds = 50;
    const auto shared = world.client();
    std::vector<std::vector<std::int64_t>> seen(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      // Half of them share one client, the others have their own.
      threads.emplace_back([&, i, store = i % 2 == 0 ? shared : world.client()] {
        for (int n = 0; n < kAdds; ++n) seen[i].push_back(store->add("sum", 1, soon()));
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(shared->get("sum", soon()) == std::to_string(kThreads * kAdds));
    std::vector<std::int64_t> all;
    for (const auto& some : seen) all.insert(all.end(), some.begin(), some.end());
    std::sort(all.begin(), all.end());
    CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
    CHECK(all.back() == kThreads * kAdds);
  });
}

TEST_CASE("exactly one of many compare_sets wins") {
  for_each_store([](StoreWorld& world, const Kind&) {
    std::vector<std::future<Bytes>> claims;
    for (int i = 0; i < 8; ++i) {
      claims.push_back(std::async(std::launch::async, [i, store = world.client()] {
        return store->compare_set("owner", "", std::to_string(i), soon());
      }));
    }
    std::vector<Bytes> owners;
    for (auto& claim : claims) owners.push_back(claim.get());
    CHECK(std::count(owners.begin(), owners.end(), owners[0]) == 8);
  });
}

// feature: B-01
TEST_CASE("10 000 keys") {
  for_each_store([](StoreWorld& world, const Kind&) {
    const auto writer = world.client();
    const auto reader = world.client();
    std::vector<std::string> keys;
    for (int i = 0; i < 10000; ++i) keys.push_back("key/" + std::to_string(i));
    auto waiting = std::async(std::launch::async, [&] { return reader->wait(keys, Deadline::after(60s)); });
    for (const std::string& key : keys) writer->set(key, key + "!", soon());
    CHECK(waiting.get().empty());
    for (int i = 0; i < 10000; i += 997) CHECK(reader->get(keys[i], soon()) == keys[i] + "!");
    CHECK(reader->check(keys, soon()));
  });
}

}  // namespace store_contract_test
