#include "lockstep/train/data/prefetcher.h"

#include <doctest/doctest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <stdexcept>

#include "tests/support/expect_error.h"

namespace prefetcher_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

const Deadline kSoon = Deadline::after(30s);

}  // namespace

TEST_CASE("items come in order, whatever the number of workers and the window") {
  for (const std::size_t workers : {0, 1, 2, 4, 9}) {
    for (const std::size_t window : {1, 2, 7}) {
      Prefetcher<std::size_t> prefetcher(50, workers, window, [](std::size_t number) { return number * number; });
      for (std::size_t i = 0; i < 50; ++i) REQUIRE(prefetcher.next(kSoon) == i * i);
      CHECK_FALSE(prefetcher.next(kSoon).has_value());
      CHECK_FALSE(prefetcher.next(kSoon).has_value());
    }
  }
}

TEST_CASE("a slow first item does not let later ones overtake it") {
  std::latch second_is_made(1);
  Prefetcher<std::size_t> prefetcher(2, 2, 2, [&](std::size_t number) {
    if (number == 0) second_is_made.wait();
    if (number == 1) second_is_made.count_down();
    return number;
  });
  CHECK(prefetcher.next(kSoon) == 0);
  CHECK(prefetcher.next(kSoon) == 1);
}

TEST_CASE("no more items than the window are made ahead") {
  std::atomic<std::size_t> begun{0};
  std::atomic<std::size_t> taken{0};
  std::atomic<bool> is_ahead{false};
  Prefetcher<int> prefetcher(200, 3, 4, [&](std::size_t number) {
    ++begun;
    // next() frees a place before this thread counts it, hence the one.
    if (number >= taken + 1 + 4) is_ahead = true;
    return 0;
  });
  for (int i = 0; i < 200; ++i) {
    REQUIRE(prefetcher.next(kSoon));
    ++taken;
  }
  CHECK_FALSE(is_ahead);
  CHECK(begun == 200);
}

TEST_CASE("an exception comes with its item, after those before it, and ends the sequence") {
  for (const std::size_t workers : {0, 1, 4}) {
    Prefetcher<std::size_t> prefetcher(100, workers, 8, [](std::size_t number) {
      if (number == 3) throw std::runtime_error("three");
      return number;
    });
    for (std::size_t i = 0; i < 3; ++i) REQUIRE(prefetcher.next(kSoon) == i);
    CHECK_THROWS_WITH(prefetcher.next(kSoon), "three");
    CHECK_FALSE(prefetcher.next(kSoon).has_value());
  }
}

TEST_CASE("next gives up at its deadline, and the item can still be had later") {
  std::latch may_go_on(1);
  Prefetcher<int> prefetcher(1, 1, 1, [&](std::size_t) {
    may_go_on.wait();
    return 7;
  });
  CHECK_ERROR(error_of([&] { prefetcher.next(Deadline::after(1ms)); }), ErrorKind::timeout, "batch 0 of the 1",
              "get_batch() is stuck");
  may_go_on.count_down();
  CHECK(prefetcher.next(kSoon) == 7);
}

TEST_CASE("destroying it stops all workers: nothing is made that was not begun") {
  std::atomic<int> begun{0};
  {
    Prefetcher<int> prefetcher(1'000'000, 4, 8, [&](std::size_t) { return ++begun; });
    REQUIRE(prefetcher.next(kSoon));
  }
  CHECK(begun <= 1 + 8);
}

TEST_CASE("items are moved, not copied") {
  Prefetcher<std::unique_ptr<int>> prefetcher(
      3, 2, 2, [](std::size_t number) { return std::make_unique<int>(static_cast<int>(number)); });
  CHECK(**prefetcher.next(kSoon) == 0);
  CHECK(**prefetcher.next(kSoon) == 1);
}

}  // namespace prefetcher_test
