// Collectives that a communicator moves in the memory of a device: what they compute, for what the host waits, and how
// they fail. On the device that only tests have.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <string>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/comm/group/world.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/fake_device.h"
#include "tests/support/local_groups.h"

namespace device_calls_test {

using namespace lockstep;
using namespace lockstep::testing;

namespace {

at::Device device_of(const ProcessGroup& group) {
  return {at::kPrivateUse1, static_cast<c10::DeviceIndex>(group.rank())};
}

at::Tensor numbers(std::int64_t count, int rank, at::ScalarType type = at::kFloat) {
  return (at::arange(count, at::kLong) % 5 + rank + 1).to(type);
}

// What all ranks get for the error of a call, within a second.
template <class Call>
std::vector<Error> errors_of(int ranks, Over transport, Call&& call) {
  std::vector<Error> errors(static_cast<std::size_t>(ranks), Error(ErrorKind::internal, "no error"));
  const auto begun = std::chrono::steady_clock::now();
  run_group(ranks, transport, [&](const ProcessGroup& group) {
    errors[static_cast<std::size_t>(group.rank())] = error_of([&] { call(group); });
  });
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(5));
  return errors;
}

}  // namespace

// feature: L-05
TEST_CASE("collectives of a device's tensors go over its communicator, and the host waits for none") {
  use_fake_device();
  const WithFakeCommunicators with;
  for (const Over transport : kTransports) {
    for (const int ranks : {1, 2, 3}) {
      const long before = fake_communicator_calls();
      run_group_or_throw(ranks, transport, [ranks](const ProcessGroup& group) {
        const at::Device device = device_of(group);
        const std::int64_t waits = fake_device_waits_here();
        std::vector<std::pair<at::Tensor, at::Tensor>> found;  // and wanted
        for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kComplexFloat}) {
          const auto mine = [&](int rank) { return numbers(7, rank, type); };
          const at::Tensor sum = mine(group.rank()).to(device, /*non_blocking=*/true);
          at::Tensor wanted = mine(0), first = mine(0);
          for (int rank = 1; rank < ranks; ++rank) wanted = wanted + mine(rank);
          group.all_reduce(sum);
          found.emplace_back(sum, wanted);
          const std::vector<at::Tensor> all = group.all_gather(sum);
          for (const at::Tensor& each : all) found.emplace_back(each, wanted);
          const at::Tensor sent = mine(group.rank()).to(device, true);
          group.broadcast(sent, ranks - 1);
          found.emplace_back(sent, mine(ranks - 1));
        }
        CHECK(fake_device_waits_here() == waits);
        for (const auto& [each, wanted] : found) CHECK(at::equal(each.to(at::kCPU), wanted));
      });
      CHECK((fake_communicator_calls() > before) == (ranks > 1));
    }
  }
}

TEST_CASE("a Work of a device's call is complete when the device is done, and can be waited for by the host") {
  use_fake_device();
  const WithFakeCommunicators with;
  std::atomic<bool> may_go{false};
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const at::Tensor tensor = at::full({3}, 0.5F, device_of(group));
    group.all_reduce(tensor);  // the first call of a device waits for the others
    if (group.rank() == 1) {
      while (!may_go) std::this_thread::yield();
    }
    const Work work = group.all_reduce_async(tensor);
    if (group.rank() == 0) {
      CHECK_FALSE(work.is_completed());
      CHECK_ERROR(error_of([&] { work.wait(std::chrono::milliseconds(1)); }), ErrorKind::timeout, "wait() timed out");
      may_go = true;
    }
    work.wait(std::chrono::seconds(20));
    CHECK(work.is_completed());
    CHECK(work.exception() == nullptr);
    CHECK(at::equal(tensor.to(at::kCPU), at::full({3}, 2.0F)));
  });
}

TEST_CASE("a barrier waits for what devices do") {
  use_fake_device();
  const WithFakeCommunicators with({.longest_delay_us = 20'000});
  run_group_or_throw(2, Over::links, [](const ProcessGroup& group) {
    const at::Tensor tensor = at::ones({3}, device_of(group));
    for (int i = 0; i < 5; ++i) {
      const Work work = group.all_reduce_async(tensor);
      group.barrier();
      CHECK(work.is_completed());
    }
  });
}

// feature: C-07
TEST_CASE("ranks that make different calls on devices are told both, and nothing hangs") {
  use_fake_device();
  const WithFakeCommunicators with;
  using Call = std::function<void(const ProcessGroup&, const at::Tensor&)>;
  const std::vector<std::pair<Call, std::string>> different{
      {[](const auto& group, const auto& t) { group.all_reduce(t, ReduceOp::max); }, "all_reduce(max)"},
      {[](const auto& group, const auto& t) { group.all_reduce(t.narrow(0, 0, 3)); }, "of 3 float32 on a device"},
      {[](const auto& group, const auto& t) { group.all_reduce(t.to(at::kHalf)); }, "of 4 float16 on a device"},
      {[](const auto& group, const auto& t) { group.broadcast(t); }, "broadcast"},
      {[](const auto& group, const auto&) { group.barrier(); }, "barrier"},
      {[](const auto& group, const auto&) { group.all_reduce(at::ones({4})); }, "in all_reduce(sum) #3 of 4 float32"},
  };
  for (const Over transport : kTransports) {
    for (const auto& [call, text] : different) {
      CAPTURE(text);
      const auto errors = errors_of(3, transport, [&, &call = call](const ProcessGroup& group) {
        const at::Tensor tensor = at::ones({4}, device_of(group));
        group.all_reduce(tensor);
        group.rank() == 1 ? call(group, tensor) : group.all_reduce(tensor);
        group.barrier();
      });
      for (const Error& error : errors) {
        CHECK_ERROR(error, ErrorKind::desync, "all_reduce(sum)", "of 4 float32 on a device", text);
      }
    }
  }
}

TEST_CASE("the first call of a device is compared, too") {
  use_fake_device();
  const WithFakeCommunicators with;
  for (const Over transport : kTransports) {
    const auto errors = errors_of(2, transport, [](const ProcessGroup& group) {
      group.all_reduce(at::ones({4}, group.rank() == 0 ? device_of(group) : at::Device(at::kCPU)));
      group.barrier();
    });
    for (const Error& error : errors) CHECK_ERROR(error, ErrorKind::desync, "of 4 float32 on a device");
  }
}

TEST_CASE("a rank that does not come is named at the deadline, and the others' device is free") {
  use_fake_device();
  const WithFakeCommunicators with;
  const long aborts = fake_communicator_aborts();
  for (const Over transport : kTransports) {
    std::atomic<bool> over{false};
    const auto errors = run_group(2, transport, [&](const ProcessGroup& group) {
      const at::Tensor tensor = at::ones({4}, device_of(group));
      group.all_reduce(tensor);
      if (group.rank() == 1) {
        while (!over) std::this_thread::yield();
        return;
      }
      const Work work = group.all_reduce_async(tensor, ReduceOp::sum, {.timeout = std::chrono::milliseconds(100)});
      work.wait();  // only the stream does
      const Error error = error_of([&] { work.wait(std::chrono::seconds(20)); });
      CHECK_ERROR(error, ErrorKind::timeout, "all_reduce(sum) #", "on a device", "missing: rank 1");
      CHECK_ERROR(error_of([&] { group.all_reduce(tensor); }), ErrorKind::timeout, "missing: rank 1");
      tensor.to(at::kCPU);  // the stream goes on
      over = true;
    });
    CHECK_FALSE(errors[0]);
  }
  CHECK(fake_communicator_aborts() >= aborts + 2);
}

TEST_CASE("a device that does not finish ends the group of all ranks at the deadline") {
  use_fake_device();
  const WithFakeCommunicators with({.never_finished_from = 1});
  const CapturedLog log;
  for (const Over transport : kTransports) {
    const auto errors = errors_of(2, transport, [](const ProcessGroup& group) {
      const at::Tensor tensor = at::ones({4}, device_of(group));
      group.all_reduce(tensor);
      const CallOptions brief{.timeout = std::chrono::milliseconds(group.rank() == 0 ? 150 : 20'000)};
      const Work work = group.all_reduce_async(tensor, ReduceOp::sum, brief);
      work.wait();
      tensor.to(at::kCPU);
      work.wait(std::chrono::seconds(20));
    });
    CHECK_ERROR(errors[0], ErrorKind::timeout, "all ranks have made the call, but the device has not finished it");
    CHECK_ERROR(errors[1], ErrorKind::timeout, "rank 0 after");
  }
  CHECK(log.text().find("do not use what they leave in their tensors") != std::string::npos);
}

TEST_CASE("what a communicator reports ends the group of all ranks") {
  use_fake_device();
  const WithFakeCommunicators with({.longest_delay_us = 200'000, .failure = "the network is down"});
  for (const Over transport : kTransports) {
    const auto errors = errors_of(2, transport, [](const ProcessGroup& group) {
      const Work work = group.all_reduce_async(at::ones({4}, device_of(group)));
      work.wait(std::chrono::seconds(20));
      group.barrier();
      throw Error(ErrorKind::internal, "the network is down, which no call has told");
    });
    for (const Error& error : errors) CHECK(std::string(error.what()).find("the network is down") != std::string::npos);
  }
}

// feature: E-20
TEST_CASE("ranks that share a device go through the host, with a warning, or are refused") {
  use_fake_device();
  const WithFakeCommunicators with({.on_one_device = true});
  const CapturedLog log;
  const long calls = fake_communicator_calls();
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      for (int i = 0; i < 2; ++i) {
        const at::Tensor tensor = numbers(4, group.rank()).to(device_of(group));
        group.all_reduce(tensor);
        CHECK(at::equal(tensor.to(at::kCPU), numbers(4, 0) + numbers(4, 1)));
      }
    });
  }
  CHECK(fake_communicator_calls() == calls);
  log.await(
      "rank 0 and rank 1 use the same device, so fake cannot connect them; tensors of this group go through the "
      "host's");
}

TEST_CASE("what a communicator cannot do goes through the host") {
  use_fake_device();
  const WithFakeCommunicators with;
  as_group(2, [](const ProcessGroup& group) {
    const at::Device device = device_of(group);
    const at::Tensor scanned = numbers(4, group.rank()).to(device);
    group.scan(scanned);
    CHECK(at::equal(scanned.to(at::kCPU), group.rank() == 0 ? numbers(4, 0) : numbers(4, 0) + numbers(4, 1)));
    const at::Tensor shorts = numbers(4, group.rank(), at::kShort).to(device);
    group.all_reduce(shorts);
    CHECK(at::equal(shorts.to(at::kCPU), numbers(4, 0, at::kShort) + numbers(4, 1, at::kShort)));
    const at::Tensor in_tree = numbers(4, group.rank()).to(device);
    group.all_reduce(in_tree, ReduceOp::max, {.order = Order::tree});
    CHECK(at::equal(in_tree.to(at::kCPU), at::maximum(numbers(4, 0), numbers(4, 1))));
  });
}

TEST_CASE("a reduction in a tree has the bits of the host, and does not leave the device") {
  use_fake_device();
  const WithFakeCommunicators with;
  for (const int ranks : {2, 4}) {
    run_group_or_throw(ranks, Over::links, [](const ProcessGroup& group) {
      for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
        for (const std::int64_t count : {0, 1, 3, 4, 1001}) {
          for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
            const at::Tensor wave = at::sin(at::arange(count, at::kDouble) * 7 + group.rank() * 1.3) * 3;
            const at::Tensor expected = wave.to(type), found = expected.to(device_of(group));
            const std::int64_t waits = fake_device_waits_here();
            group.all_reduce(found, op, {.order = Order::tree});
            CHECK(fake_device_waits_here() == waits);
            group.all_reduce(expected, op, {.order = Order::tree});
            CHECK(at::equal(found.to(at::kCPU), expected));
          }
        }
      }
    });
  }
}

TEST_CASE("a rank with several devices has a communicator for each") {
  use_fake_device();
  const WithFakeCommunicators with;
  as_group(2, [](const ProcessGroup& group) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 4; ++i) {
      const at::Device device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(2 * group.rank() + i % 2));
      tensors.push_back(numbers(5 + i, group.rank()).to(device));
      group.all_reduce_async(tensors.back()).wait();
    }
    for (int i = 0; i < 4; ++i) {
      CHECK(at::equal(tensors[static_cast<std::size_t>(i)].to(at::kCPU), numbers(5 + i, 0) + numbers(5 + i, 1)));
    }
  });
}

TEST_CASE("bad arguments of a device's call are refused before anything is sent") {
  use_fake_device();
  const WithFakeCommunicators with;
  as_group(2, [](const ProcessGroup& group) {
    const at::Tensor tensor = at::ones({4}, device_of(group));
    CHECK_ERROR(error_of([&] { group.broadcast(tensor, 7); }), ErrorKind::invalid_argument, "root");
    CHECK_ERROR(error_of([&] { group.all_to_all({tensor}, {tensor}); }), ErrorKind::invalid_argument,
                "expected 2 of each");
    CHECK_ERROR(error_of([&] {
                  group.all_reduce(tensor.expand({3, 4}));
                }),
                ErrorKind::invalid_argument, "share memory");
    group.all_reduce(tensor);
    CHECK(at::equal(tensor.to(at::kCPU), at::full({4}, 2.0F)));
  });
}

TEST_CASE("parts of a group have communicators of their own") {
  use_fake_device();
  const WithFakeCommunicators with;
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    const at::Tensor tensor = at::ones({4}, device_of(group));
    group.all_reduce(tensor);
    const at::Tensor all = at::zeros({4}, device_of(group));
    group.all_gather_into(all, tensor);
    CHECK(at::equal(all.to(at::kCPU), at::ones({4})));
  });
}

TEST_CASE("the end of a world tells what failed on a device if no call has, and only then") {
  use_fake_device();
  const WithFakeCommunicators with({.never_finished_from = 1});
  enum class Tells { nothing, work, barrier, abort };
  for (const Tells tells : {Tells::nothing, Tells::work, Tells::barrier, Tells::abort}) {
    const auto groups = local_groups(2, Over::arena, {.timeout = std::chrono::milliseconds(200)});
    std::barrier both_have_called(2);
    const auto errors = run_ranks(2, [&](int rank) {
      Membership membership;
      membership.rank = rank;
      membership.size = 2;
      const World world(std::move(membership), groups[static_cast<std::size_t>(rank)]);
      const at::Tensor tensor = at::ones({4}, device_of(world));
      world.all_reduce(tensor);
      const Work work = world.all_reduce_async(tensor);
      work.wait();
      both_have_called.arrive_and_wait();
      if (tells == Tells::work) CHECK_THROWS_AS(work.wait(std::chrono::seconds(20)), Error);
      if (tells == Tells::barrier) CHECK_THROWS_AS(world.barrier(), Error);
      if (tells == Tells::abort) world.abort("that is enough");
    });
    for (const auto& error : errors) {
      CAPTURE(static_cast<int>(tells));
      CHECK((error != nullptr) == (tells == Tells::nothing));
    }
  }
}

// As NCCL, which connects ranks when a call first needs it.
TEST_CASE("a library that waits within a call is aborted if the others make another call, or none") {
  use_fake_device();
  const WithFakeCommunicators with({.waits_within = true});
  for (const Over transport : kTransports) {
    for (const bool calls_another : {false, true}) {
      std::atomic<bool> over{false};
      std::vector<Error> errors(2, Error(ErrorKind::internal, "none"));
      run_group(2, transport, [&](const ProcessGroup& group) {
        const at::Tensor tensor = at::ones({4}, device_of(group));
        group.all_reduce(tensor);
        if (group.rank() == 1 && !calls_another) {
          while (!over) std::this_thread::yield();
          return;
        }
        const CallOptions brief{.timeout = std::chrono::milliseconds(calls_another ? 20'000 : 200)};
        const auto begun = std::chrono::steady_clock::now();
        errors[static_cast<std::size_t>(group.rank())] = error_of([&] {
          group.rank() == 0 ? group.all_reduce(tensor, brief) : group.broadcast(tensor, brief);
          group.barrier();
        });
        CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(5));
        over = true;
      });
      CHECK_ERROR(errors[0], calls_another ? ErrorKind::desync : ErrorKind::timeout, "all_reduce(sum) #3",
                  calls_another ? "broadcast" : "missing: rank 1");
      if (calls_another) CHECK_ERROR(errors[1], ErrorKind::desync, "all_reduce(sum) #3", "broadcast");
    }
  }
}

TEST_CASE("ranks that use their devices in different orders are told") {
  use_fake_device();
  const WithFakeCommunicators with;
  const auto errors = errors_of(2, Over::arena, [](const ProcessGroup& group) {
    const bool is_first = group.rank() == 0;
    const auto on = [&](bool first) {
      return at::ones({1},
                      at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(2 * group.rank() + (first ? 0 : 1))));
    };
    group.all_reduce(on(is_first));
    group.all_reduce(on(!is_first));
    group.all_reduce(on(true));
    group.all_reduce(on(false));
    group.barrier();
  });
  for (const Error& error : errors) CHECK_ERROR(error, ErrorKind::desync, "on device 2 of the rank", "on a device");
}

TEST_CASE("an abort at any moment ends what devices do, and frees them") {
  use_fake_device();
  const WithFakeCommunicators with({.longest_delay_us = 100});
  for (int round = 0; round < 100; ++round) {
    run_group(2, kTransports[round % 2], [&](const ProcessGroup& group) {
      std::jthread killer([&] {
        if (group.rank() != round % 3) return;
        std::this_thread::sleep_for(std::chrono::microseconds(round * 37 % 1500));
        group.abort("killed");
      });
      const at::Tensor tensor = at::ones({4}, device_of(group));
      for (int i = 0; i < 5; ++i) group.all_reduce(tensor, ReduceOp::max);
      killer.join();
      group.barrier();
    });
  }
  for (int device = 0; device < 2; ++device) {  // no stream waits for ever
    for (int stream = 0; stream < kFakeStreams; ++stream) {
      fake_stream(at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(device)), stream).synchronize();
    }
  }
}

// Who does not wait for a Work is told, in every run.
TEST_CASE("a program that does not wait for a device's call is found") {
  use_fake_device();
  const WithFakeCommunicators with;
  const CapturedRaces races;
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const at::Tensor tensor = at::ones({4}, device_of(group));
    const Work work = group.all_reduce_async(tensor);
    tensor.mul_(2);
    work.wait();
    group.barrier();
  });
  const std::vector<std::string> found = CapturedRaces::take();
  REQUIRE_FALSE(found.empty());
  CHECK(found.front().find("a communicator's all_reduce") != std::string::npos);
}

TEST_CASE("groups that end while devices work wait for them, and by an exception do not") {
  use_fake_device();
  const WithFakeCommunicators with({.longest_delay_us = 5000});
  for (int i = 0; i < 10; ++i) {
    std::vector<at::Tensor> tensors(2);
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      at::Tensor& tensor = tensors[static_cast<std::size_t>(group.rank())] = at::ones({4}, device_of(group));
      group.all_reduce_async(tensor).wait();
    });
    for (const at::Tensor& tensor : tensors) CHECK(at::equal(tensor.to(at::kCPU), at::full({4}, 2.0F)));
  }
}

}  // namespace device_calls_test
