// The LinkEngine over TCP with a bad network between two of its ranks: every rank gets an error that names a rank, in
// time, or the right result. Never a wrong one, unless checksums are turned off.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "lockstep/base/format.h"
#include "tests/support/chaos_proxy.h"
#include "tests/support/detour_store.h"
#include "tests/support/expect_error.h"
#include "tests/support/sanitized.h"
#include "tests/support/tcp_meshes.h"
#include "tests/unit/collective/link_fixture.h"

namespace link_chaos_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

constexpr int kRanks = 3;
constexpr std::size_t kCount = 1 << 20;  // 4 MiB of float32: some 1.4 MiB each way over each link
// Rank 1 first opens its connection for control to rank 0, and then the one for data.
constexpr int kControl = 0;
constexpr int kData = 1;

// Ranks 0 and 1 meet through a proxy; all others directly.
class BadNetwork {
 public:
  explicit BadNetwork(ChaosPlan plan, Checksums checksums = Checksums::on, Duration connect_timeout = 20s)
      : plan_(std::move(plan)) {
    MemoryStore store;
    const Token token = Token::generate();
    engines_.resize(kRanks);
    connect_errors_ = run_ranks(kRanks, [&](int rank) {
      DetourStore detour(store, [&](std::string_view key, Bytes value) {
        if (rank != 1 || !key.ends_with("/0")) return value;
        proxy_ = std::make_unique<ChaosProxy>(parse_endpoint(value), plan_);
        return Bytes(to_string(proxy_->endpoint()));
      });
      TcpMeshSettings settings = tcp_mesh_settings(rank, kRanks, token);
      settings.checksums = checksums;
      auto mesh = connect_tcp_mesh(settings, detour, Deadline::after(connect_timeout));
      engines_[static_cast<std::size_t>(rank)] = std::make_unique<LinkEngine>(std::move(mesh), 7);
    });
  }

  ChaosProxy& proxy() { return *proxy_; }
  // Throws why there is none, if its rank could not connect.
  Engine& engine(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (connect_errors_[r]) std::rethrow_exception(connect_errors_[r]);
    return *engines_[r];
  }
  const std::vector<std::exception_ptr>& connect_errors() const { return connect_errors_; }

  // All-reduces on all ranks until one fails, at most `rounds` times. What each rank threw; null if it never did.
  // `wrong` counts the calls that returned with another result than the sum.
  std::vector<std::exception_ptr> all_reduce(int rounds, Duration timeout, std::atomic<int>& wrong) {
    return run_ranks(kRanks, [&, this](int rank) {
      for (int round = 0; round < rounds; ++round) all_reduce_once(rank, round, timeout, wrong);
    });
  }
  void all_reduce_once(int rank, int round, Duration timeout, std::atomic<int>& wrong) {
    std::vector<float> data(kCount, static_cast<float>(rank + round));
    const Segment output[] = {{reinterpret_cast<std::byte*>(data.data()), kCount * sizeof(float)}};
    engine(rank).run({.kind = OpKind::all_reduce, .dtype = DType::f32, .count = kCount, .output = output},
                     Deadline::after(timeout));
    const float expected = 3.0F + 3.0F * static_cast<float>(round);
    if (std::ranges::any_of(data, [&](float value) { return value != expected; })) ++wrong;
  }
  void leave(int rank) { engines_[static_cast<std::size_t>(rank)].reset(); }

 private:
  ChaosPlan plan_;
  std::unique_ptr<ChaosProxy> proxy_;
  Engines engines_;
  std::vector<std::exception_ptr> connect_errors_;
};

ChaosPlan with_fault(Fault fault, int connection, std::uint64_t seed = 1) {
  ChaosPlan plan{.seed = seed};
  plan.fault = [fault, connection](int number) { return number == connection ? fault : Fault(); };
  return plan;
}

std::uint64_t handshake_bytes(int connection, Way way) {
  BadNetwork network({});
  return network.proxy().passed(connection, way);
}

Error as_error(const std::exception_ptr& error) {
  return error_of([&] { std::rethrow_exception(error); });
}

}  // namespace

TEST_CASE("a link that breaks in the middle of an all_reduce is named on every rank, and no result is wrong") {
  std::uint64_t seed = 0;
  for (const Fault::Kind kind : {Fault::Kind::cut, Fault::Kind::reset, Fault::Kind::half_close}) {
    for (const Way way : {Way::to_server, Way::to_client}) {
      for (const std::uint64_t at : {300, 70'000, 1'398'000, 1'400'000, 3'000'001}) {
        if (kIsSanitized && at != 300 && at != 1'400'000) continue;
        CAPTURE(static_cast<int>(kind));
        CAPTURE(static_cast<int>(way));
        CAPTURE(at);
        BadNetwork network(with_fault({kind, way, at}, kData, ++seed));
        std::atomic<int> wrong{0};
        const TimePoint start = steady_clock().now();
        const auto errors = network.all_reduce(20, 20s, wrong);
        CHECK(steady_clock().now() - start < 5s);
        CHECK(wrong == 0);
        for (int rank = 0; rank < kRanks; ++rank) {
          REQUIRE(errors[static_cast<std::size_t>(rank)]);
          const Error error = as_error(errors[static_cast<std::size_t>(rank)]);
          CHECK_ERROR(error, ErrorKind::peer_lost, "all_reduce(sum) #", fmt::format("failed on rank {} after ", rank),
                      "(host ", "pid ");
          CHECK((error.detail().peer == 0 || error.detail().peer == 1));
        }
      }
    }
  }
}

TEST_CASE("a link that freezes ends every rank's call at its deadline and names who did not come") {
  for (const std::uint64_t at : {300, 500'000}) {
    BadNetwork network(with_fault({Fault::Kind::freeze, Way::to_server, at}, kData));
    std::atomic<int> wrong{0};
    const TimePoint start = steady_clock().now();
    const auto errors = network.all_reduce(5, 500ms, wrong);
    const double waited = seconds(steady_clock().now() - start);
    CHECK(waited >= 0.5);
    CHECK(waited < 0.6 + 1.5);  // the promise is 0.6 behind the last complete round; the rest is for a busy machine
    CHECK(wrong == 0);
    for (const auto& error : errors) {
      REQUIRE(error);
      CHECK_ERROR(as_error(error), ErrorKind::timeout, "rank ", "all_reduce(sum)");
      CHECK(as_error(error).detail().peer >= 0);
    }
  }
}

TEST_CASE("a slow, jittery or narrow link is no reason for an error, and the sums are right") {
  const ChaosPlan plans[] = {
      {.seed = 2, .delay = 30ms, .jitter = 30ms, .largest_piece_bytes = 30'000},
      {.seed = 3, .bytes_per_second = 16'000'000, .largest_piece_bytes = 20'000},
      {.seed = 4, .delay = 1ms, .largest_piece_bytes = 1400},
  };
  for (const ChaosPlan& plan : plans) {
    CAPTURE(plan.seed);
    BadNetwork network(plan);
    std::atomic<int> wrong{0};
    for (const auto& error : network.all_reduce(3, 20s, wrong)) CHECK_FALSE(error);
    CHECK(wrong == 0);
  }
}

TEST_CASE("a network that pauses and goes on is no reason for an error") {
  BadNetwork network({.seed = 5});
  std::atomic<int> wrong{0};
  std::jthread pausing([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      network.proxy().freeze();
      std::this_thread::sleep_for(60ms);
      network.proxy().thaw();
      std::this_thread::sleep_for(20ms);
    }
  });
  for (const auto& error : network.all_reduce(kIsSanitized ? 3 : 10, 20s, wrong)) CHECK_FALSE(error);
  CHECK(wrong == 0);
}

// fault: 20
TEST_CASE("a flipped bit is corrupt_data on all ranks, which names the link, and no sum is ever wrong") {
  for (const Way way : {Way::to_server, Way::to_client}) {
    const std::string link = way == Way::to_server ? "data from rank 1 (host " : "data from rank 0 (host ";
    const std::uint64_t start = handshake_bytes(kData, way);
    // In a block's head, in the signature, in the head behind that and in the data.
    for (const std::uint64_t at : {0, 3, 6, 11, 12, 21, 51, 52, 57, 70, 5'000, 90'000, 700'001, 1'390'000, 2'000'000}) {
      if (kIsSanitized && at % 2 != 0) continue;
      CAPTURE(at);
      BadNetwork network(with_fault({Fault::Kind::flip, way, start + at}, kData, at + 1));
      std::atomic<int> wrong{0};
      const TimePoint begin = steady_clock().now();
      // Who has all its results by then is told in the next one.
      const auto errors = network.all_reduce(3, 20s, wrong);
      CHECK(steady_clock().now() - begin < 10s);
      CHECK(wrong == 0);
      for (const auto& error : errors) {
        REQUIRE(error);
        CHECK_ERROR(as_error(error), ErrorKind::corrupt_data, link, "was damaged on its way", "all_reduce(sum) #",
                    way == Way::to_server ? " to rank 0 (host " : " to rank 1 (host ");
      }
    }
  }
}

TEST_CASE("without checksums a flipped bit never hangs or crashes, and in what steers the collective it is an error") {
  int found = 0;
  for (const Way way : {Way::to_server, Way::to_client}) {
    const std::uint64_t start = handshake_bytes(kData, way);
    for (std::uint64_t at = start; at < start + sizeof(Signature) + 20; at += kIsSanitized ? 9 : 3) {
      CAPTURE(at);
      BadNetwork network(with_fault({Fault::Kind::flip, way, at}, kData, at), Checksums::off);
      std::atomic<int> wrong{0};
      const auto errors = run_ranks(kRanks, [&](int rank) {
        try {
          network.all_reduce_once(rank, 0, 20s, wrong);
        } catch (...) {
          network.leave(rank);
          throw;
        }
      });
      for (const auto& error : errors) {
        if (!error) continue;
        const ErrorKind kind = as_error(error).kind();
        CHECK((kind == ErrorKind::corrupt_data || kind == ErrorKind::peer_lost));
        CHECK(contains(as_error(error).what(), "rank "));
        if (kind == ErrorKind::corrupt_data) ++found;
      }
    }
  }
  CHECK(found > (kIsSanitized ? 6 : 20));
}

TEST_CASE("a connection that ends in its handshake because of a flipped bit is made again") {
  for (const int connection : {kData, kControl}) {
    CAPTURE(connection);
    BadNetwork network(with_fault({Fault::Kind::flip, Way::to_server, 0}, connection, 0));
    for (const auto& error : network.connect_errors()) CHECK_FALSE(error);
    std::atomic<int> wrong{0};
    for (const auto& error : network.all_reduce(kIsSanitized ? 20 : 200, 5s, wrong)) CHECK_FALSE(error);
    CHECK(wrong == 0);
  }
}

TEST_CASE("a flipped bit in the proof of a handshake is an error on both ranks in time") {
  for (const int connection : {kData, kControl}) {
    CAPTURE(connection);
    const TimePoint start = steady_clock().now();
    const BadNetwork network(with_fault({Fault::Kind::flip, Way::to_server, 46}, connection, 46), Checksums::on, 400ms);
    CHECK(steady_clock().now() - start < 3s);
    REQUIRE(network.connect_errors()[0]);
    REQUIRE(network.connect_errors()[1]);
    CHECK_ERROR(as_error(network.connect_errors()[0]), ErrorKind::timeout, "rank(s) 1 ", "have not connected");
    CHECK(contains(as_error(network.connect_errors()[1]).what(), "cannot connect to rank 0 at "));
  }
}

TEST_CASE("an abort that was damaged on its way still ends the peer") {
  const std::uint64_t start = handshake_bytes(kControl, Way::to_server);
  for (std::uint64_t at = 0; at < 60; at += kIsSanitized ? 15 : 5) {
    CAPTURE(at);
    std::atomic<int> wrong{0};
    BadNetwork network(with_fault({Fault::Kind::flip, Way::to_server, start + at}, kControl, at));
    std::jthread aborting([&] { network.engine(1).abort("on purpose"); });
    const auto errors = network.all_reduce(200, 5s, wrong);
    REQUIRE(errors[0]);
    const ErrorKind kind = as_error(errors[0]).kind();
    CAPTURE(as_error(errors[0]).what());
    CHECK((kind == ErrorKind::aborted || kind == ErrorKind::peer_lost || kind == ErrorKind::corrupt_data));
  }
}

}  // namespace link_chaos_test
