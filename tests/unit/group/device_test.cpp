// Tensors of other devices in groups that work on the host's memory: staged there and back. Without a GPU on a device
// that only tests have, with one also on CUDA.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "lockstep/comm/group/objects.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_device.h"
#include "tests/support/local_groups.h"
#include "tests/support/local_worlds.h"
#include "tests/support/skip.h"

namespace device_test {

using namespace lockstep;
using namespace lockstep::testing;

namespace {

at::Tensor numbers(std::int64_t count, int rank) { return at::arange(count, at::kFloat) + rank; }

void check_collectives(const ProcessGroup& group, at::Device device) {
  const int rank = group.rank();
  const auto here = [&](const at::Tensor& tensor) { return tensor.to(device); };
  const auto expect = [&](const at::Tensor& tensor, const at::Tensor& wanted) {
    CHECK(tensor.device() == device);
    CHECK(at::equal(tensor.to(at::kCPU), wanted));
  };
  for (const std::int64_t count : {0, 5, 100'000}) {
    const at::Tensor sum = here(numbers(count, rank));
    group.all_reduce(sum);
    expect(sum, numbers(count, 0) * 2 + 1);
    const at::Tensor later = here(numbers(count, rank));
    const Work work = group.all_reduce_async(later, ReduceOp::max);
    work.wait();
    expect(later, numbers(count, 1));
    const at::Tensor sent = here(numbers(count, rank));
    group.broadcast(sent, 1);
    expect(sent, numbers(count, 1));
    const std::vector<at::Tensor> all = group.all_gather(here(numbers(count, rank)));
    for (int peer = 0; peer < 2; ++peer) expect(all[static_cast<std::size_t>(peer)], numbers(count, peer));
    const at::Tensor part = here(at::zeros({count}));
    group.reduce_scatter(part, {here(numbers(count, rank)), here(numbers(count, rank + 10))});
    expect(part, numbers(count, rank * 10) * 2 + 1);
    const at::Tensor got = here(at::zeros({count}));
    const Work received = group.recv_async(got, 1 - rank);
    group.send(here(numbers(count, rank)), 1 - rank);
    received.wait();
    expect(got, numbers(count, 1 - rank));
  }
  const at::Tensor columns = here(numbers(12, rank).reshape({3, 4})).t();
  group.all_reduce({columns, at::ones({2})});  // not in order, and with one of the host's
  expect(columns, (numbers(12, 0) * 2 + 1).reshape({3, 4}).t());
}

}  // namespace

TEST_CASE("a device's tensors are staged through the host's memory and come home") {
  register_fake_device();
  const std::int64_t before = fake_device_synchronizations();
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      CHECK(group.supports(OpKind::all_reduce, ReduceOp::sum, at::kFloat, at::kPrivateUse1));
      check_collectives(group, kFakeDevice);
    });
  }
  CHECK(fake_device_synchronizations() > before);  // where nothing is copied in, what is queued is waited for
}

TEST_CASE("a device's tensors with lazy bits, or twice in a list, get what they should") {
  register_fake_device();
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      const at::Tensor waves = at::complex(numbers(3, group.rank()), at::ones({3})).to(kFakeDevice);
      group.all_reduce(waves.conj());
      CHECK(at::equal(waves.to(at::kCPU), at::complex(numbers(3, 0) * 2 + 1, at::full({3}, 2.0F))));
      CHECK(at::equal(group.all_gather(waves.conj())[1].to(at::kCPU), waves.to(at::kCPU).conj().resolve_conj()));
      const at::Tensor twice = numbers(3, group.rank()).to(kFakeDevice);
      group.all_reduce({twice, twice});
      CHECK(at::equal(twice.to(at::kCPU), numbers(3, 0) * 2 + 1));
      CHECK_ERROR(error_of([&] {
                    group.all_gather_into({twice, twice}, {twice});
                  }),
                  ErrorKind::invalid_argument, "output tensors 0 and 1 overlap in memory");
    });
  }
}

TEST_CASE("a failed collective leaves a device's tensors as they were") {
  register_fake_device();
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const at::Tensor tensor = numbers(4 + group.rank(), 1).to(kFakeDevice);
    CHECK_ERROR(error_of([&] { group.all_reduce(tensor); }), ErrorKind::desync, "of 4 float32", "of 5 float32");
    CHECK(at::equal(tensor.to(at::kCPU), numbers(4 + group.rank(), 1)));
  });
}

// feature: A-12
TEST_CASE("tensors without memory are refused") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    const at::Tensor meta = at::empty({3}, at::TensorOptions().device(at::kMeta));
    CHECK_ERROR(error_of([&] { group.all_reduce(meta); }), ErrorKind::invalid_argument,
                "all_reduce: tensor 0 is on the meta device, which has no memory");
    CHECK_FALSE(group.supports(OpKind::all_reduce, ReduceOp::sum, at::kFloat, at::kMeta));
  });
}

// feature: C-09
TEST_CASE("tensors in objects come on the group's device, whatever the current one is") {
  register_fake_device();
  const auto store = std::make_shared<MemoryStore>();
  const auto errors = run_ranks(2, [&](int rank) {
    const at::Device own(at::kPrivateUse1, static_cast<c10::DeviceIndex>(3 + rank));
    const World world = init_process_group({.rank = rank, .world_size = 2, .store = store, .device = own});
    const at::Tensor mine = numbers(4, rank).to(own);
    for (const ProcessGroup& group : {ProcessGroup(world), *world.split(0)}) {
      const std::vector<at::Tensor> all = all_gather_object(group, mine);
      for (int peer = 0; peer < 2; ++peer) {
        CHECK(all[static_cast<std::size_t>(peer)].device() == own);
        CHECK(at::equal(all[static_cast<std::size_t>(peer)].to(at::kCPU), numbers(4, peer)));
      }
      CHECK(broadcast_object(group, mine, 1).device() == own);
      CHECK(scatter_object<at::Tensor>(group, {mine, mine}).device() == own);
      for (const at::Tensor& tensor : gather_object(group, mine)) CHECK(tensor.device() == own);
      CHECK(broadcast_object(group, mine.to(at::kCPU)).is_cpu());
    }
  });
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// feature: E-20
TEST_CASE("ranks that share a real GPU are refused by both names" * needs("gpu")) {
  if (!at::hasCUDA()) return skip("no CUDA device");
  const InitOptions options{.backend = "native", .device = at::Device(at::kCUDA, 0), .shared_gpu = SharedGpu::refuse};
  for (const auto& error : run_worlds(
           2, [](const World&) {}, options)) {
    REQUIRE(error != nullptr);
    CHECK_ERROR(error_of([&] { std::rethrow_exception(error); }), ErrorKind::invalid_argument, "rank 0 (host ",
                ") and rank 1 (host ", "use the same GPU");
  }
}

// feature: E-20
TEST_CASE("ranks that share a real GPU are refused where NCCL is to connect them" * needs("gpu")) {
  if (!at::hasCUDA()) return skip("no CUDA device");
  if (!is_available("nccl")) return skip("this build has no nccl");
  const InitOptions options{.device = at::Device(at::kCUDA, 0)};
  for (const auto& error : run_worlds(
           2, [](const World&) {}, options)) {
    REQUIRE(error != nullptr);
    CHECK_ERROR(error_of([&] { std::rethrow_exception(error); }), ErrorKind::invalid_argument, "use the same GPU",
                "NCCL cannot connect them", "or use the backend native");
  }
}

// feature: L-04
TEST_CASE("two ranks share a GPU" * needs("gpu")) {
  if (!at::hasCUDA()) return skip("no CUDA device");
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport,
                       [](const ProcessGroup& group) { check_collectives(group, at::Device(at::kCUDA, 0)); });
  }
}

}  // namespace device_test
