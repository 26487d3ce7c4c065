// Messages of a ProcessGroup: tensors from rank to rank, beside its collectives.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/comm/group/process_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"

namespace messages_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

at::Tensor letter(int from, int to, std::int64_t length) { return at::full({length}, from * 10 + to); }

}  // namespace

// feature: A-13, C-13
TEST_CASE("every rank sends to every rank, small and large") {
  for (const Over transport : kTransports) {
    run_group_or_throw(4, transport, [](const ProcessGroup& group) {
      for (const std::int64_t length : {0, 1, 1000, 262'144}) {
        std::vector<Work> works;
        std::vector<at::Tensor> received;
        for (int peer = 0; peer < 4; ++peer) {
          received.push_back(at::zeros({length}, at::kLong));
          works.push_back(group.recv_async(received.back(), peer, 7));
          works.push_back(group.send_async(letter(group.rank(), peer, length), peer, 7));
        }
        for (const Work& work : works) work.wait();
        for (int peer = 0; peer < 4; ++peer) {
          CHECK(at::equal(received[static_cast<std::size_t>(peer)], letter(peer, group.rank(), length)));
          CHECK(works[static_cast<std::size_t>(2 * peer)].source() == peer);
        }
        const at::Tensor sum = at::ones({1});
        group.all_reduce(sum);
        CHECK(sum.item<float>() == 4);
      }
    });
  }
}

// feature: C-13
TEST_CASE("tags keep messages apart, and any source takes what comes") {
  for (const Over transport : kTransports) {
    run_group_or_throw(3, transport, [](const ProcessGroup& group) {
      if (group.rank() != 0) {
        group.send(at::full({2, 3}, group.rank()).t(), 0, 1);
        group.send(at::full({4}, -group.rank()), 0, 2);
        return;
      }
      at::Tensor columns = at::zeros({2, 3}, at::kLong).t();
      int sum = 0;
      for (int i = 0; i < 2; ++i) {
        at::Tensor second = at::zeros({4}, at::kLong);
        const int source = group.recv(second, kAnySource, 2);
        CHECK(at::equal(second, at::full({4}, -source)));
        CHECK(group.recv(columns, source, 1) == source);
        CHECK(at::equal(columns, at::full({3, 2}, source)));
        sum += source;
      }
      CHECK(sum == 3);
    });
  }
}

// feature: C-13
TEST_CASE("what is wrong with a message is said, and the group goes on") {
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      CHECK_ERROR(error_of([&] { group.send(at::ones({1}), 2); }), ErrorKind::invalid_argument, "2");
      at::Tensor three = at::zeros({3});
      CHECK_ERROR(error_of([&] { group.recv(three, 1 - group.rank(), 9, {.timeout = 50ms}); }), ErrorKind::timeout,
                  "tag 9", "12 bytes");
      group.barrier();
      const Work sent = group.send_async(at::ones({4}), 1 - group.rank());
      CHECK_ERROR(error_of([&] { group.recv(three, 1 - group.rank()); }), ErrorKind::desync, "16", "12");
      group.barrier();
    });
  }
}

TEST_CASE("a rank that ends the group ends all messages, also if it has never sent one itself") {
  for (const Over transport : kTransports) {
    const auto groups = local_groups(3, transport, {.timeout = 30s});
    const Work receive = groups[1].recv_async(at::ones({4}), 2);
    const Work any = groups[2].recv_async(at::ones({4}));
    groups[0].abort("the loss is NaN");
    const auto ended = [](auto&& call) { CHECK_ERROR(error_of(call), ErrorKind::aborted, "the loss is NaN"); };
    ended([&] { receive.wait(Deadline::after(20s)); });
    ended([&] { any.wait(Deadline::after(20s)); });
    for (const ProcessGroup& group : groups) {
      ended([&] { group.send(at::ones({4}), 1); });
      ended([&] { group.recv(at::ones({4}), 1); });
      ended([&] { group.monitored_barrier(); });
      ended([&] { group.barrier(); });
    }
  }
}

TEST_CASE("a message that is refused is recorded as failed, and does not stay under way") {
  const auto groups = local_groups(2);
  const auto refused = [](auto&& call) {
    FlightRecord before, after;
    const std::uint64_t first = process_recorder().add(before).number + 1;
    CHECK(error_of(call).kind() == ErrorKind::invalid_argument);
    const std::uint64_t end = process_recorder().add(after).number;
    for (std::uint64_t number = first; number < end; ++number) {
      CHECK(process_recorder().find(number).value().state == FlightState::failed);
    }
  };
  refused([&] { groups[0].send(at::ones({4}), 7); });
  refused([&] { groups[0].recv_async(at::ones({4}), -3); });
  const ProcessGroup silent(std::make_unique<ArenaEngine>(std::move(make_local_arenas(1).front())));
  refused([&] { silent.send(at::ones({4}), 0); });
  refused([&] { silent.recv(at::ones({4}), 0); });
}

}  // namespace messages_test
