// Tensors of other devices in groups that work on the host's memory: staged there and back. Without a GPU on a device
// that only tests have, with one also on CUDA.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <doctest/doctest.h>

#include <optional>
#include <random>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_communicator.h"
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

// Works on tensors of a device and on their twins on the host, and waits for streams where a program has to.
class RandomCalls {
 public:
  RandomCalls(const ProcessGroup& group, unsigned seed)
      : group_(group), random_(seed), own_(seed * 10 + static_cast<unsigned>(group.rank())) {}

  void next() {
    const std::int64_t rows = 1 + pick(random_, 4), columns = pick(random_, 300);
    const bool is_transposed = pick(random_, 3) == 0, is_list = pick(random_, 3) == 0, is_async = pick(random_, 2) == 0;
    const int kind = pick(random_, 9), root = pick(random_, 2);
    const bool needs_two = kind == 2 || kind == 5;
    std::vector<at::Tensor> twins;
    for (int i = 0; i < (needs_two || is_list ? 2 : 1); ++i) {
      at::Tensor twin = numbers(rows * columns, group_.rank() + i).reshape({rows, columns});
      twins.push_back(is_transposed ? twin.t() : twin);
    }
    const auto run = [&](const std::vector<at::Tensor>& tensors, bool on_device) {
      const at::Tensor& first = tensors.front();
      switch (kind) {
        case 0: return group_.all_reduce_async(tensors);
        case 1: return group_.broadcast_async(tensors, root);
        case 2: return group_.all_gather_into_async(tensors, first.clone());
        case 3: return group_.reduce_scatter_async(first, {first.clone(), first + 1});
        case 4: return group_.reduce_async(tensors, root, ReduceOp::max);
        case 5: return group_.all_to_all_async(tensors, {first + 1, first * 2});
        case 6:
          if (group_.rank() != root) return group_.gather_into_async({}, first, root);
          return group_.gather_into_async(others_ = {first.clone(), first.clone()}, first, root);
        case 7:
          if (group_.rank() != root) return group_.scatter_async(first, {}, root);
          return group_.scatter_async(first, {first + 1, first * 2}, root);
        default:
          if (group_.rank() == root) return group_.send_async(first, 1 - root, on_device ? 1 : 0);
          return group_.recv_async(first, root, on_device ? 1 : 0);
      }
    };
    std::vector<at::Tensor> tensors;
    Work work;
    on_some_stream([&] {
      for (const at::Tensor& twin : twins) tensors.push_back(twin.clone().to(device_).mul_(1));
      work = run(tensors, true);
      if (!is_async) work.wait();
    });
    on_some_stream([&] {
      work.wait();
      for (const at::Tensor& tensor : tensors) tensor.mul_(3);
    });
    run(twins, false).wait();
    on_some_stream([&] {
      CAPTURE(kind);
      CAPTURE(is_transposed);
      CAPTURE(is_list);
      if (kind == 4 && group_.rank() != root) return;  // which leaves anything there
      for (std::size_t i = 0; i < twins.size(); ++i) CHECK(at::equal(tensors[i].to(at::kCPU), twins[i] * 3));
    });
  }

 private:
  static int pick(std::mt19937& random, int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); }
  template <class Part>
  void on_some_stream(Part&& part) {
    const c10::Stream stream = fake_stream(device_, pick(own_, 3));
    const c10::StreamGuard guard(stream);
    part();
    CHECK(c10::impl::VirtualGuardImpl(at::kPrivateUse1).getStream(device_) == stream);  // it is the caller's
    c10::Event event(at::kPrivateUse1);
    event.record(stream);
    for (int i = 0; i < 3; ++i) event.block(fake_stream(device_, i));
  }

  const ProcessGroup& group_;
  std::mt19937 random_, own_;  // the same on all ranks; this rank's
  std::vector<at::Tensor> others_;
  const at::Device device_{at::kPrivateUse1, static_cast<c10::DeviceIndex>(group_.rank())};
};

}  // namespace

TEST_CASE("a device's tensors are staged through the host's memory and come home") {
  use_fake_device();
  const std::int64_t before = fake_device_synchronizations();
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      CHECK(group.supports(OpKind::all_reduce, ReduceOp::sum, at::kFloat, at::kPrivateUse1));
      check_collectives(group, kFakeDevice);
    });
  }
  CHECK(fake_device_synchronizations() > before);  // where nothing is copied in, what is queued is waited for
}

// feature: L-04
TEST_CASE("only the group's thread waits for the device of an asynchronous call, and once for a list") {
  use_fake_device();
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      const at::Device device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(group.rank()));
      std::vector<at::Tensor> list;
      for (int i = 0; i < 5; ++i) list.push_back(numbers(10 + i, group.rank()).to(device));
      const at::Tensor got = at::zeros({10}, device);
      std::int64_t before = fake_device_waits_here();
      const Work received = group.recv_async(got, 1 - group.rank());
      const Work reduced = group.all_reduce_async(list);
      reduced.wait();
      CHECK(fake_device_waits_here() == before);
      group.send(list[0], 1 - group.rank());
      received.wait();
      CHECK(fake_device_waits_here() == before + 1);  // of send()
      CHECK(at::equal(got.to(at::kCPU), numbers(10, 0) * 2 + 1));
      before = fake_device_waits_here();
      group.all_reduce(list);
      CHECK(fake_device_waits_here() == before + 1);
      for (int i = 0; i < 5; ++i) CHECK(at::equal(list[i].to(at::kCPU), (numbers(10 + i, 0) * 2 + 1) * 2));
    });
  }
}

TEST_CASE("a tensor of a device may go while its call runs, and before its result has come") {
  use_fake_device();
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      const at::Device device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(group.rank()));
      for (int i = 0; i < 20; ++i) {
        group.all_reduce_async(numbers(10, group.rank()).to(device).mul_(2));
        group.recv_async(at::zeros({10}, device), 1 - group.rank());
        group.send(numbers(10, 0), 1 - group.rank());
      }
      group.barrier();
    });
  }
}

// The oracle: the same calls with tensors of the host. A missing dependency fails the test by itself.
TEST_CASE("random calls on random streams of a device") {
  use_fake_device();
  for (unsigned seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    std::optional<WithFakeCommunicators> with;
    if (seed % 4 >= 2) with.emplace();
    run_group_or_throw(2, kTransports[seed % 2], [&](const ProcessGroup& group) {
      RandomCalls calls(group, seed);
      for (int i = 0; i < 15; ++i) calls.next();
    });
  }
}

TEST_CASE("a device's tensors with lazy bits, or twice in a list, get what they should") {
  use_fake_device();
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
  use_fake_device();
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
  use_fake_device();
  const auto store = std::make_shared<MemoryStore>();
  const auto errors = run_ranks(2, [&](int rank) {
    const at::Device own(at::kPrivateUse1, static_cast<c10::DeviceIndex>(3 + rank));
    const World world = init_process_group({.rank = rank, .world_size = 2, .store = store, .device = own});
    const at::Tensor mine = numbers(4, rank).to(own);
    for (const ProcessGroup& group : {ProcessGroup(world), *world.split(0)}) {
      const std::vector<at::Tensor> all = group.all_gather_object(mine);
      for (int peer = 0; peer < 2; ++peer) {
        CHECK(all[static_cast<std::size_t>(peer)].device() == own);
        CHECK(at::equal(all[static_cast<std::size_t>(peer)].to(at::kCPU), numbers(4, peer)));
      }
      CHECK(group.broadcast_object(mine, 1).device() == own);
      CHECK(group.scatter_object<at::Tensor>({mine, mine}).device() == own);
      for (const at::Tensor& tensor : group.gather_object(mine)) CHECK(tensor.device() == own);
      CHECK(group.broadcast_object(mine.to(at::kCPU)).is_cpu());
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
  const InitOptions options{.backend = "nccl", .device = at::Device(at::kCUDA, 0)};
  for (const auto& error : run_worlds(
           2, [](const World&) {}, options)) {
    REQUIRE(error != nullptr);
    CHECK_ERROR(error_of([&] { std::rethrow_exception(error); }), ErrorKind::invalid_argument, "use the same GPU",
                "NCCL cannot connect them", "or use the native backend");
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
