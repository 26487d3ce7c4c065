#include "lockstep/comm/health/join_watch.h"

#include <memory>

#include "lockstep/comm/health/watched_store.h"
#include "lockstep/comm/store/memory_store.h"
#include "tests/support/expect_error.h"

namespace join_watch_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

Deadline soon() { return Deadline::after(5s); }

// Each on a host of its own.
struct Watches {
  JoinWatch of(int rank) const {
    const std::string host = "host" + std::to_string(rank);
    const std::string name = "rank " + std::to_string(rank) + " (host " + host + ", pid " + std::to_string(100 + rank);
    return {store, {rank, name + ")", host, 100 + rank}, 4, "the group was being split"};
  }
  std::shared_ptr<Store> store = std::make_shared<MemoryStore>();
};

Error lost(int peer) { return {ErrorKind::peer_lost, "rank " + std::to_string(peer) + " was lost", {.peer = peer}}; }

// Whose host has ended.
class GoneStore : public Store {
 public:
  void set(std::string_view, ByteView, Deadline) override { throw gone(); }
  Bytes get(std::string_view, Deadline) override { throw gone(); }
  std::int64_t add(std::string_view, std::int64_t, Deadline) override { throw gone(); }
  Bytes compare_set(std::string_view, ByteView, ByteView, Deadline) override { throw gone(); }
  std::vector<std::string> wait(const std::vector<std::string>&, Deadline) override { throw gone(); }
  bool check(const std::vector<std::string>&, Deadline) override { throw gone(); }
  bool remove(std::string_view, Deadline) override { throw gone(); }

 private:
  static Error gone() { return {ErrorKind::peer_lost, "rank 0, which hosts the store, has ended", {.peer = 0}}; }
};

// Whose server is too busy to answer before a deadline.
class BusyStore final : public Store {
 public:
  void set(std::string_view key, ByteView value, Deadline d) override { store_.set(key, value, d); }
  Bytes get(std::string_view key, Deadline d) override { return store_.get(key, d); }
  std::int64_t add(std::string_view key, std::int64_t by, Deadline d) override { return store_.add(key, by, d); }
  Bytes compare_set(std::string_view key, ByteView from, ByteView to, Deadline d) override {
    return store_.compare_set(key, from, to, d);
  }
  std::vector<std::string> wait(const std::vector<std::string>& keys, Deadline d) override {
    return store_.wait(keys, d);
  }
  bool check(const std::vector<std::string>& keys, Deadline d) override {
    if (!is_busy) return store_.check(keys, d);
    throw Error(ErrorKind::timeout, "the store server has not answered for 0.2 s");
  }
  bool remove(std::string_view key, Deadline d) override { return store_.remove(key, d); }
  bool is_busy = true;

 private:
  MemoryStore store_;
};

}  // namespace

TEST_CASE("a store that is slow to answer is no death, and the next look finds what was posted") {
  const auto store = std::make_shared<BusyStore>();
  Watches watches;
  watches.store = store;
  const auto watch = std::make_shared<JoinWatch>(store, PeerProcess{2, "rank 2", "host2", 102}, 4, "joining");
  WatchedStore watched(store, watch);
  CHECK(watched.wait({"absent"}, Deadline::after(1ms)) == std::vector<std::string>{"absent"});
  CHECK_NOTHROW(watch->look(soon()));
  watches.of(0).cause_of(lost(3));
  CHECK_NOTHROW(watch->look(soon()));
  store->is_busy = false;
  CHECK_ERROR(error_of([&] { watch->look(soon()); }), ErrorKind::peer_lost, "rank 3 was lost");
}

// fault: 3
TEST_CASE("where the store's host is gone, who was seen to go is told with it") {
  Watches watches;
  watches.store = std::make_shared<GoneStore>();
  JoinWatch watch = watches.of(2);
  const Error cause = watch.cause_of(lost(3));
  CHECK_ERROR(cause, ErrorKind::peer_lost, "rank 0, which hosts the store, has ended; rank 3 was lost");
  CHECK(cause.detail().peer == 0);
  // The number of an error's peer may be that in a part, or in shared memory.
  CHECK_ERROR(watch.cause_of(lost(0)), ErrorKind::peer_lost, "has ended; rank 0 was lost");
  CHECK_ERROR(watch.cause_of(Error(ErrorKind::internal, "no memory")), ErrorKind::internal, "no memory");
}

// fault: 3
TEST_CASE("the first error posted is the cause for all that find others gone") {
  const Watches watches;
  JoinWatch first = watches.of(0), second = watches.of(1), third = watches.of(2);
  CHECK_ERROR(first.cause_of(lost(3)), ErrorKind::peer_lost, "rank 3 was lost");
  // Rank 0 has left because of that, and its error was posted before.
  const Error cause = second.cause_of(lost(0));
  CHECK_ERROR(cause, ErrorKind::peer_lost, "rank 3 was lost");
  CHECK(cause.detail().peer == 3);
  CHECK_ERROR(second.cause_of(cause), ErrorKind::peer_lost, "rank 3 was lost");
  CHECK_ERROR(third.cause_of(Error(ErrorKind::timeout, "rank 0 has not come")), ErrorKind::peer_lost, "rank 3");
  CHECK_ERROR(error_of([&] { third.look(soon()); }), ErrorKind::peer_lost, "rank 3 was lost");
}

TEST_CASE("an error of one's own stays, and the others hear of it") {
  const Watches watches;
  JoinWatch first = watches.of(0), second = watches.of(1);
  CHECK_ERROR(first.cause_of(Error(ErrorKind::internal, "no memory")), ErrorKind::internal, "no memory");
  CHECK_ERROR(second.cause_of(Error(ErrorKind::corrupt_data, "a damaged frame")), ErrorKind::corrupt_data, "damaged");
  CHECK_ERROR(second.cause_of(Error(ErrorKind::timeout, "rank 0 has not come")), ErrorKind::timeout, "has not come");
  const Error cause = second.cause_of(lost(0));
  CHECK_ERROR(cause, ErrorKind::aborted, "rank 0 (host host0, pid 100) has given up: no memory");
  CHECK(cause.detail().peer == 0);
}

TEST_CASE("a posted error counts ranks as those do who join, not as the part that is being connected") {
  const Watches watches;
  JoinWatch first = watches.of(3), lost_one = watches.of(1), second = watches.of(2);
  first.set_ranks({3, 1});
  first.cause_of(lost(1));
  CHECK(second.cause_of(lost(0)).detail().peer == 1);
  const Error own = lost_one.cause_of(lost(0));
  CHECK_ERROR(own, ErrorKind::peer_lost, "rank 3 considers this rank lost: ");
  CHECK(own.detail().peer == 3);
}

TEST_CASE("what is found after all have met is nobody else's cause") {
  const Watches watches;
  JoinWatch first = watches.of(0), second = watches.of(1);
  first.cause_of(lost(3));
  second.end(soon());
  CHECK_ERROR(second.cause_of(lost(0)), ErrorKind::peer_lost, "rank 0 was lost");
}

}  // namespace join_watch_test
