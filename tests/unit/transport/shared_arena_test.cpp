// Shared memory that one of the ranks cannot have: all ranks learn it, in time, and who and why.
#include "lockstep/comm/transport/shared_arena.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/format.h"
#include "lockstep/comm/health/process_watch.h"
#include "lockstep/comm/net/token.h"
#include "lockstep/comm/store/memory_store.h"
#include "lockstep/comm/store/store_server.h"
#include "lockstep/comm/store/tcp_store.h"
#include "lockstep/comm/transport/abort_record.h"
#include "lockstep/comm/transport/arena_handle.h"
#include "lockstep/comm/transport/mapping.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked_child.h"
#include "tests/support/rank_threads.h"

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

constexpr int kRanks = 3;

// Ranks that are processes: children that wait in a pipe until all of them are known, and the store is there. Its
// server is made after them: a child of a process with threads may find a lock taken for ever.
class Ranks {
 public:
  // What a rank does before it makes the arena.
  using Before = std::function<void(int rank)>;
  // What it does with it, and says.
  using After = std::function<std::string(const Arena&, const SharedArenaSpec&, Store&)>;

  explicit Ranks(Before before, Duration timeout = 20s, ArenaOptions options = {.segment_bytes = 64 << 20},
                 After after = nullptr)
      : options_(options), after_(std::move(after)) {
    int start[2], results[2];
    REQUIRE(::pipe(start) == 0);
    REQUIRE(::pipe(results) == 0);
    for (int rank = 0; rank < kRanks; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) run(rank, before, start[0], results[1], timeout);
      pids_.push_back(pid);
    }
    server_ = std::make_unique<StoreServer>(Endpoint{"127.0.0.1", 0}, StoreServerOptions{.token = token_});
    Start told;
    std::copy(pids_.begin(), pids_.end(), told.pids);
    told.port = server_->address().port();
    for (int rank = 0; rank < kRanks; ++rank) {
      REQUIRE(::write(start[1], &told, sizeof told) == static_cast<ssize_t>(sizeof told));
    }
    texts_.resize(kRanks);
    ::close(results[1]);
    ::close(start[0]);
    ::close(start[1]);
    std::string all;
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(results[0], buffer, sizeof buffer)) > 0;) {
      all.append(buffer, static_cast<std::size_t>(got));
    }
    ::close(results[0]);
    for (int rank = 0; rank < kRanks; ++rank) {
      int status = 0;
      ::waitpid(pids_[static_cast<std::size_t>(rank)], &status, 0);
      signals_.push_back(WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    }
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t end = all.find('\n', at);
      texts_[static_cast<std::size_t>(all[at] - '0')] = all.substr(at + 2, end - at - 2);
      at = end + 1;
    }
  }

  // "joined", or the kind and text of the rank's error; empty if it died.
  const std::string& text(int rank) const { return texts_[static_cast<std::size_t>(rank)]; }
  int signal(int rank) const { return signals_[static_cast<std::size_t>(rank)]; }

 private:
  struct Start {
    pid_t pids[kRanks] = {};
    std::uint16_t port = 0;
  };

  [[noreturn]] void run(int rank, const Before& before, int start, int results, Duration timeout) {
    std::string line = std::to_string(rank) + " ";
    try {
      Start told;
      if (::read(start, &told, sizeof told) != static_cast<ssize_t>(sizeof told)) ::_exit(1);
      SharedArenaSpec spec{.name = "test", .rank = rank, .members = {}, .options = options_};
      for (int each = 0; each < kRanks; ++each) {
        spec.members.push_back({"rank " + std::to_string(each), told.pids[each]});
      }
      TcpStore store({"127.0.0.1", told.port}, {.token = token_, .job_id = "", .channel = {}, .mine = {}});
      store.connect(Deadline::after(20s));
      before(rank);
      const auto arena = make_shared_arena(spec, store, Deadline::after(timeout));
      line += "joined" + (after_ ? after_(*arena, spec, store) : "");
    } catch (const Error& error) {
      line += std::string(to_string(error.kind())) + " " + error.what();
    }
    line += "\n";
    ::_exit(::write(results, line.data(), line.size()) > 0 ? 0 : 1);
  }

  ArenaOptions options_;
  After after_;
  Token token_ = Token::generate();
  std::unique_ptr<StoreServer> server_;
  std::vector<pid_t> pids_;
  std::vector<std::string> texts_;
  std::vector<int> signals_;
};

void limit(int resource, rlim_t soft) {
  rlimit limits{};
  ::getrlimit(static_cast<__rlimit_resource>(resource), &limits);
  limits.rlim_cur = soft;
  ::setrlimit(static_cast<__rlimit_resource>(resource), &limits);
}

void check_all(const Ranks& ranks, const std::vector<std::string>& parts) {
  for (int rank = 0; rank < kRanks; ++rank) {
    CAPTURE(rank);
    CAPTURE(ranks.text(rank));
    CHECK(ranks.signal(rank) == 0);
    CHECK(ranks.text(rank).starts_with("internal "));
    for (const std::string& part : parts) {
      CAPTURE(part);
      CHECK(contains(ranks.text(rank), part));
    }
  }
}

}  // namespace

TEST_CASE("ranks that are processes share an arena") {
  const Ranks ranks([](int) {});
  for (int rank = 0; rank < kRanks; ++rank) CHECK(ranks.text(rank) == "joined");
}

// feature: A-18
TEST_CASE("a group that is split off has the tensors of the group that it is of, and needs little memory") {
  const Ranks ranks([](int) {}, 20s, {.segment_bytes = 64 << 20},
                    [](const Arena& whole, const SharedArenaSpec& of_whole, Store& store) {
                      auto* mine = static_cast<int*>(whole.heap()->allocate(sizeof(int)));
                      *mine = 10 + whole.rank();
                      if (whole.rank() == 1) return std::string();
                      SharedArenaSpec spec{.name = "part",
                                           .rank = whole.rank() == 2 ? 0 : 1,
                                           .members = {of_whole.members[2], of_whole.members[0]},
                                           .options = {}};
                      spec.heaps = std::make_shared<const ArenaHeaps>(whole.heaps()->of({2, 0}));
                      const auto part = make_shared_arena(spec, store, Deadline::after(20s));
                      part->control(spec.rank).reduced.store(1);
                      part->ring();
                      const auto ready = [&] { return part->control(1 - spec.rank).reduced.load() == 1; };
                      part->await(
                          ready, [](int) { return true; },
                          [](const WaitFailure&) { return Error(ErrorKind::timeout, "late"); }, Deadline::after(20s));
                      const auto offset = part->heaps()->offset_in(spec.rank, reinterpret_cast<std::byte*>(mine), 4);
                      const int theirs = *reinterpret_cast<int*>(part->segment(1 - spec.rank) + offset.value());
                      return fmt::format(", {} reads {}", part->heap() == whole.heap() ? "one heap" : "two", theirs);
                    });
  CHECK(ranks.text(0) == "joined, one heap reads 12");
  CHECK(ranks.text(1) == "joined");
  CHECK(ranks.text(2) == "joined, one heap reads 10");
}

// Sanitizers need more addresses, and descriptors of their own, than such limits leave.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// fault: 21
TEST_CASE("a rank that may not have so many addresses is named on all ranks, with what to look at") {
  for (const int unlucky : {0, 1, 2}) {
    CAPTURE(unlucky);
    const TimePoint start = steady_clock().now();
    const Ranks ranks([&](int rank) {
      if (rank == unlucky) limit(RLIMIT_AS, 200 << 20);
    });
    CHECK(steady_clock().now() - start < 5s);
    const std::string who = "rank " + std::to_string(unlucky);
    check_all(ranks,
              {who + (unlucky == 0 ? " could not create shared memory" : " cannot map the group's shared memory"),
               "ulimit -v", "Cannot allocate memory"});
  }
}

// What a process may map beyond what it has.
void limit_addresses(std::size_t more) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  limit(RLIMIT_AS, pages * static_cast<std::size_t>(::getpagesize()) + more);
}

std::string size_of_segment(const Arena& arena, const SharedArenaSpec&, Store&) {
  return fmt::format(" with {}", arena.heaps()->segment_bytes());
}

// feature: A-18
TEST_CASE("the rank with the fewest addresses decides how large an arena is") {
  for (const int unlucky : {0, 1, 2}) {
    CAPTURE(unlucky);
    const Ranks ranks([&](int rank) { limit_addresses(std::size_t{rank == unlucky ? 400U : 900U} << 20); }, 20s, {},
                      &size_of_segment);
    for (int rank = 0; rank < kRanks; ++rank) {
      CAPTURE(ranks.text(rank));
      REQUIRE(ranks.text(rank).starts_with("joined with "));
      const auto segment = std::stoull(ranks.text(rank).substr(12));
      CHECK(segment <= (std::size_t{200} << 20) / kRanks);
      CHECK(segment > (std::size_t{150} << 20) / kRanks);
    }
  }
}

// fault: 21
TEST_CASE("a rank with too few addresses for any arena is named on all ranks, with what to do") {
  for (const int unlucky : {0, 1, 2}) {
    CAPTURE(unlucky);
    const Ranks ranks(
        [&](int rank) {
          if (rank == unlucky) limit_addresses(std::size_t{150} << 20);
        },
        20s, {}, &size_of_segment);
    check_all(ranks, {"rank " + std::to_string(unlucky) + " cannot map the group's shared memory: it has 1",
                      "of which shared memory may take half, and 3 ranks need", "ulimit -v unlimited"});
  }
}

// fault: 21, 52
TEST_CASE("a rank without descriptors is named on all ranks") {
  const Ranks ranks([](int rank) {
    if (rank != 2) return;
    const int next = ::dup(0);
    ::close(next);
    limit(RLIMIT_NOFILE, static_cast<rlim_t>(next) + 2);  // for those that watch the peers, and no more
  });
  check_all(ranks, {"rank 2 cannot map the group's shared memory", "cannot open", "Too many open files"});
}
#endif

// fault: 21
TEST_CASE("a limit on file sizes is an error on all ranks, not the death of the first") {
  const Ranks ranks([](int rank) {
    if (rank == 0) limit(RLIMIT_FSIZE, 1 << 20);
  });
  check_all(ranks, {"rank 0 could not create shared memory: cannot size shared memory", "ulimit -f", "File too large"});
}

TEST_CASE("who comes when others have left because of an error hears which, not that they have died") {
  void* memory =
      ::mmap(nullptr, sizeof(std::atomic<pid_t>[kRanks]), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* pids = static_cast<std::atomic<pid_t>*>(memory);
  const Ranks ranks([pids](int rank) {
    pids[rank] = ::getpid();
    if (rank == 0) return limit(RLIMIT_FSIZE, 1 << 20);
    while (pids[rank - 1] == 0) std::this_thread::sleep_for(1ms);
    const ProcessWatch last(pids[rank - 1]);
    while (!last.has_ended()) std::this_thread::sleep_for(1ms);
  });
  ::munmap(memory, sizeof(std::atomic<pid_t>[kRanks]));
  check_all(ranks, {"rank 0 could not create shared memory: cannot size shared memory"});
}

TEST_CASE("a rank that dies before it has mapped the memory is named at once, one that stands still at the deadline") {
  const TimePoint start = steady_clock().now();
  const Ranks killed([](int rank) {
    if (rank == 1) ::kill(::getpid(), SIGKILL);
  });
  CHECK(steady_clock().now() - start < 5s);
  for (const int rank : {0, 2}) {
    CAPTURE(killed.text(rank));
    CHECK(contains(killed.text(rank), "peer_lost rank 1 has ended while the group was being set up"));
  }
  const Ranks late(
      [](int rank) {
        if (rank == 1) std::this_thread::sleep_for(2s);  // well beyond the others' deadline
      },
      400ms);
  for (const int rank : {0, 2}) {
    CAPTURE(late.text(rank));
    CHECK(contains(late.text(rank), "timeout "));
  }
  CHECK(contains(late.text(0), "rank 1 did not map the shared memory of group test"));
}

TEST_CASE("a rank that dies before it has made the memory is named at once, one that stands still at the deadline") {
  const TimePoint start = steady_clock().now();
  const Ranks killed([](int rank) {
    if (rank == 0) ::kill(::getpid(), SIGKILL);
  });
  CHECK(steady_clock().now() - start < 5s);
  for (const int rank : {1, 2}) {
    CAPTURE(killed.text(rank));
    CHECK(contains(killed.text(rank), "peer_lost rank 0 has ended while the group was being set up"));
  }
  const Ranks late(
      [](int rank) {
        if (rank == 0) std::this_thread::sleep_for(800ms);
      },
      400ms);
  for (const int rank : {1, 2}) {
    CAPTURE(late.text(rank));
    CHECK(contains(late.text(rank), "timeout shared memory of group test: not created by rank 0"));
  }
}

namespace {

constexpr std::size_t kSegment = std::size_t{8} << 20;

// What member 1 makes of an invitation by member 0, which is this process as well.
Error invited(const std::string& invitation) {
  MemoryStore store;
  store.set("arena/test", invitation, Deadline::after(20s));
  SharedArenaSpec spec;
  spec.name = "test";
  spec.rank = 1;
  spec.members = {{"rank 0", ::getpid()}, {"rank 1", ::getpid()}};
  spec.options.segment_bytes = kSegment;
  const Error error = error_of([&] { make_shared_arena(spec, store, Deadline::after(20s)); });
  CHECK(store.get("arena/test/1", Deadline::after(20s)).starts_with("?"));  // so that member 0 says the same
  return error;
}

}  // namespace

// fault: S8
TEST_CASE("a handle of shared memory that is a lie is corrupt data, and names its rank") {
  const auto mapping = Mapping::create(arena_bytes(2, kSegment));
  const ArenaHandle right{::getpid(), mapping.fd(), mapping.size(), 17};
  const auto refused = [](const ArenaHandle& invitation, const std::string& why) {
    CHECK_ERROR(invited(to_string(invitation)), ErrorKind::corrupt_data, "rank 1 cannot map", why);
  };
  CHECK_ERROR(invited("rubbish"), ErrorKind::corrupt_data, "rank 0's handle of shared memory");
  CHECK_ERROR(invited("1 2 3"), ErrorKind::corrupt_data, "it is truncated");
  refused({1, right.fd, right.bytes, 17}, "the process id is 1");
  refused({right.pid, -1, right.bytes, 17}, "the descriptor is -1");
  refused({right.pid, right.fd, right.bytes + 1, 17}, "were announced");
  refused(right, "the size of a segment is 0");
  format_arena(mapping, 2, 2 * kSegment, 0, 17);
  refused(right, "the size of a segment is 16777216");
  format_arena(mapping, 3, kSegment, 0, 17);
  refused(right, "was made for another group or by another version of Lockstep");
}

// fault: 21
TEST_CASE("why a member cannot map the memory stays in the store, for those who see only that it has ended") {
  MemoryStore store;
  store.set("arena/test/1", "!too few addresses", Deadline::after(20s));
  SharedArenaSpec spec;
  spec.name = "test";
  spec.members = {{"rank 0", ::getpid()}, {"rank 1", ::getpid()}};
  spec.options.segment_bytes = kSegment;
  CHECK_ERROR(error_of([&] { make_shared_arena(spec, store, Deadline::after(20s)); }), ErrorKind::internal,
              "rank 1 cannot map the group's shared memory: too few addresses");
  CHECK(store.check({"arena/test/1"}, Deadline::after(20s)));
}

// fault: S8
TEST_CASE("shared memory that could be taken away while it is used is refused") {
  const UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  const std::size_t bytes = arena_bytes(2, kSegment);
  REQUIRE(::ftruncate(unsealed.get(), static_cast<off_t>(bytes)) == 0);
  CHECK_ERROR(invited(to_string(ArenaHandle{::getpid(), unsealed.get(), bytes, 17})), ErrorKind::corrupt_data,
              "not sealed");
}

// fault: S8
TEST_CASE("shared memory has no name, and nobody who has it can change its size") {
  const Mapping mapping = Mapping::create(4096);
  struct stat status {};
  REQUIRE(::fstat(mapping.fd(), &status) == 0);
  CHECK(status.st_nlink == 0);
  const int seals = ::fcntl(mapping.fd(), F_GET_SEALS);
  CHECK((seals & F_SEAL_SHRINK) != 0);
  CHECK((seals & F_SEAL_GROW) != 0);
  CHECK(::ftruncate(mapping.fd(), 0) == -1);
  CHECK(::ftruncate(mapping.fd(), 8192) == -1);
  CHECK((::fcntl(mapping.fd(), F_GETFD) & FD_CLOEXEC) != 0);
}

// fault: S8
TEST_CASE("an abort record that no rank has written is corrupt data") {
  arena::AbortRecord record{};
  record_abort(record, Error(ErrorKind::timeout, "late", {.peer = 2}));
  CHECK_ERROR(read_abort(record, 0, 3), ErrorKind::timeout, "late");
  CHECK(read_abort(record, 0, 3).detail().peer == 2);
  const Error beyond = read_abort(record, 0, 2);
  CHECK_ERROR(beyond, ErrorKind::corrupt_data, "the rank is 2");
  CHECK(beyond.detail().peer == -1);
  record.places[0].kind = 77;
  CHECK_ERROR(read_abort(record, 0, 3), ErrorKind::corrupt_data, "kind of error is 77");
  record.places[0].kind = 0;
  record.places[0].text_bytes = 1 << 30;
  CHECK_ERROR(read_abort(record, 0, 3), ErrorKind::corrupt_data, "length of its text");
  record.first = 4;
  CHECK_ERROR(read_abort(record, 0, 3), ErrorKind::corrupt_data, "the place is 3; expected 0 to 2");
}
