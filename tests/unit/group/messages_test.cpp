// Messages of a ProcessGroup: tensors from rank to rank, beside its collectives.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "lockstep/base/error.h"
#include "lockstep/group/process_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"

using namespace lockstep;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

constexpr Over kTransports[] = {Over::arena, Over::links};

at::Tensor letter(int from, int to, std::int64_t length) { return at::full({length}, from * 10 + to); }

}  // namespace

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
