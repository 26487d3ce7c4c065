#include "lockstep/comm/messages/monitored_barrier.h"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <stdexcept>

#include <string>
#include <thread>

#include "messenger_fixture.h"
#include "tests/support/expect_error.h"
#include "tests/support/rank_threads.h"

namespace monitored_barrier_test {

namespace {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

using Errors = std::vector<std::exception_ptr>;

Error thrown(const std::exception_ptr& error) {
  REQUIRE(error);
  return error_of([&] { std::rethrow_exception(error); });
}

// Of four ranks those call it that `comes` names.
Errors call_it(
    Messengers& messengers, std::uint64_t number, Duration timeout, bool wait_all_ranks,
    const std::function<bool(int)>& comes = [](int) { return true; }) {
  return run_ranks(static_cast<int>(messengers.size()), [&](int rank) {
    if (comes(rank)) monitored_barrier(*messengers[static_cast<std::size_t>(rank)], number, timeout, wait_all_ranks);
  });
}

void check_passed(const Errors& errors) {
  for (const auto& error : errors) CHECK_FALSE(error);
}

}  // namespace

TEST_CASE("a monitored barrier lets nobody pass before all have come") {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(kind.name);
    Messengers messengers = make_messengers(kind.make(4));
    for (std::uint64_t number = 0; number < 20; ++number) {
      std::atomic<int> came{0};
      run_ranks_or_throw(4, [&](int rank) {
        ++came;
        monitored_barrier(*messengers[static_cast<std::size_t>(rank)], number, 20s, false);
        if (came != 4) throw std::runtime_error("passed too early");
      });
    }
  }
}

TEST_CASE("rank 0 may leave as soon as it has passed, and nobody misses its word") {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(kind.name);
    for (int round = 0; round < 20; ++round) {
      Messengers messengers = make_messengers(kind.make(3));
      run_ranks_or_throw(3, [&](int rank) {
        monitored_barrier(*messengers[static_cast<std::size_t>(rank)], 0, 20s, false);
        if (rank == 0) messengers[0].reset();
      });
    }
  }
}

TEST_CASE("those who come learn of the first that does not, and the next barrier passes") {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(kind.name);
    Messengers messengers = make_messengers(kind.make(4));
    const TimePoint start = steady_clock().now();
    const auto errors = call_it(messengers, 0, 600ms, false, [](int rank) { return rank == 0 || rank == 2; });
    CHECK(steady_clock().now() - start < 600ms + 1s);
    CHECK_ERROR(thrown(errors[0]), ErrorKind::timeout, "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 600 ms",
                "rank 1", "alive");
    CHECK_ERROR(thrown(errors[2]), ErrorKind::timeout, "[Rank 2]: Rank 2 successfully reached monitoredBarrier",
                "Rank 1 failed to pass monitoredBarrier");
    CHECK(thrown(errors[0]).detail().peer == 1);
    CHECK(thrown(errors[2]).detail().peer == 1);
    // A rank that comes late is told at once.
    const Error late = error_of([&] { monitored_barrier(*messengers[3], 0, 20s, false); });
    CHECK_ERROR(late, ErrorKind::timeout, "[Rank 3]", "Rank 1 failed");
    check_passed(call_it(messengers, 1, 20s, false));
  }
}

TEST_CASE("wait_all_ranks names all that are missing") {
  Messengers messengers = make_messengers(make_arena_meshes(4));
  const auto errors = call_it(messengers, 0, 400ms, true, [](int rank) { return rank % 2 == 0; });
  CHECK_ERROR(thrown(errors[0]), ErrorKind::timeout, "Ranks 1, 3 failed to pass monitoredBarrier");
  CHECK_ERROR(thrown(errors[2]), ErrorKind::timeout, "Ranks 1, 3 failed to pass monitoredBarrier");
}

TEST_CASE("a rank whose deadline passes before that of rank 0 knows who is missing, too") {
  Messengers messengers = make_messengers(make_arena_meshes(3));
  const auto errors = run_ranks(3, [&](int rank) {
    if (rank == 2) return;
    monitored_barrier(*messengers[static_cast<std::size_t>(rank)], 0, rank == 0 ? 1500ms : 700ms, false);
  });
  CHECK_ERROR(thrown(errors[1]), ErrorKind::timeout, "[Rank 1]", "Rank 2 failed to pass monitoredBarrier in 1500 ms");
  CHECK_ERROR(thrown(errors[0]), ErrorKind::timeout, "Rank 2 failed");
}

TEST_CASE("rank 0 is named by all others if it does not come") {
  Messengers messengers = make_messengers(make_arena_meshes(3));
  const auto errors = call_it(messengers, 0, 200ms, false, [](int rank) { return rank != 0; });
  for (const int rank : {1, 2}) {
    const Error error = thrown(errors[static_cast<std::size_t>(rank)]);
    CHECK_ERROR(error, ErrorKind::timeout, "rank 0 did not arrive in 200 ms");
    CHECK(error.detail().peer == 0);
  }
}

TEST_CASE("a rank that has left is named at once") {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(kind.name);
    Messengers messengers = make_messengers(kind.make(3));
    messengers[1].reset();
    const TimePoint start = steady_clock().now();
    const auto errors = run_ranks(3, [&](int rank) {
      if (rank != 1) monitored_barrier(*messengers[static_cast<std::size_t>(rank)], 0, 20s, false);
    });
    CHECK(steady_clock().now() - start < 10s);
    CHECK_ERROR(thrown(errors[0]), ErrorKind::peer_lost, "Rank 1 failed", "left");
    CHECK_ERROR(thrown(errors[2]), ErrorKind::peer_lost, "Rank 1 failed");
  }
}

TEST_CASE("rank 0 has no time at all") {
  Messengers messengers = make_messengers(make_arena_meshes(2));
  CHECK_ERROR(error_of([&] { monitored_barrier(*messengers[0], 0, 0s, false); }), ErrorKind::timeout,
              "Rank 0 timed out in monitoredBarrier after 0 ms");
}

}  // namespace monitored_barrier_test
