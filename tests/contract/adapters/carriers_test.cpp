// The contract of engines, for what runs over Gloo; ranks are threads. Order of addition is the library's affair. And
// what one rank shows of NCCL.
#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <doctest/doctest.h>

#include <array>

#include "lockstep/comm/adapters/backends.h"
#include "lockstep/comm/adapters/communicator.h"
#include "lockstep/comm/store/memory_store.h"
#include "tests/contract/engine/cases.h"
#include "tests/support/expect_error.h"
#include "tests/support/rank_threads.h"
#include "tests/support/skip.h"

namespace carriers_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

bool has(const std::string& backend) {
  const std::vector<std::string> names = backends();
  const bool found = std::find(names.begin(), names.end(), backend) != names.end();
  if (!found) skip("this build has no " + backend);
  return found;
}
bool has_gloo() { return has("gloo"); }

// With buffers that hold little, what is small goes in rounds as well.
Engines make_gloo_engines(int ranks, std::size_t buffer_bytes = 1 << 20) {
  const auto store = std::make_shared<MemoryStore>();
  Engines engines(static_cast<std::size_t>(ranks));
  run_ranks_or_throw(ranks, [&](int rank) {
    CarrierSite site{.rank = rank,
                     .size = ranks,
                     .generation = 3,
                     .group = "test",
                     .address = "127.0.0.1",
                     .members = {},
                     .store = store,
                     .buffer_bytes = buffer_bytes};
    for (int peer = 0; peer < ranks; ++peer) site.members.push_back("rank " + std::to_string(peer));
    engines[static_cast<std::size_t>(rank)] = make_backend_engine("gloo", site, soon());
  });
  return engines;
}

Error error_in(const std::exception_ptr& thrown) {
  return error_of([&] {
    if (thrown) std::rethrow_exception(thrown);
  });
}

}  // namespace

TEST_CASE("gloo makes no tree of more than two ranks, and says so before anything is sent") {
  if (!has_gloo()) return;
  const Collective collective{.kind = OpKind::all_reduce, .order = Order::tree, .dtype = DType::f32};
  for (const int ranks : {2, 4}) {
    Engines engines = make_gloo_engines(ranks);
    const auto errors =
        run_ranks(ranks, [&](int rank) { engines[static_cast<std::size_t>(rank)]->run(collective, soon()); });
    for (const auto& error : errors) {
      if (ranks == 2) CHECK_FALSE(error);
      if (ranks == 4) {
        CHECK(
            std::string(error_in(error).what()) ==
            "all_reduce: the gloo backend does not support Order::tree for more than 2 ranks; the native backend does");
      }
    }
  }
}

// feature: A-12
TEST_CASE("the table of what is supported is true of gloo") {
  if (!has_gloo()) return;
  for (const int ranks : {1, 2, 3}) {
    Engines engines = make_gloo_engines(ranks);
    run_ranks_or_throw(ranks, [&](int rank) {
      Engine& engine = *engines[static_cast<std::size_t>(rank)];
      CHECK(engine.name() == "gloo");
      CHECK(walk_table(engine, Where::ordinary, Match::value) > 0);
      CHECK_FALSE(engine.supports(OpKind::all_reduce, ReduceOp::sum, DType::i16));
      CHECK(engine.supports(OpKind::all_gather, ReduceOp::sum, DType::i16));
      CHECK(engine.supports(OpKind::scan, ReduceOp::sum, DType::i16));
    });
  }
}

TEST_CASE("random collectives over gloo") {
  if (!has_gloo()) return;
  for (const int ranks : {2, 4}) {
    Engines engines = make_gloo_engines(ranks);
    run_ranks_or_throw(ranks, [&](int rank) {
      Engine& engine = *engines[static_cast<std::size_t>(rank)];
      std::mt19937 shared(static_cast<unsigned>(ranks)), own(static_cast<unsigned>(rank) + 1000);
      for (int i = 0; i < 150; ++i) {
        const Case c = random_case(shared, ranks, i);
        if (engine.supports(c.kind, c.reduce, c.dtype)) run_case(engine, c, own, Where::ordinary, Match::value);
      }
    });
  }
}

TEST_CASE("scans over gloo have the bits of the rank order") {
  if (!has_gloo()) return;
  Engines engines = make_gloo_engines(3);
  run_ranks_or_throw(3, [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    std::mt19937 own(static_cast<unsigned>(rank));
    for (const OpKind kind : {OpKind::scan, OpKind::exclusive_scan}) {
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::c128}) {
        run_case(engine, {.kind = kind, .dtype = dtype, .count = 5001}, own, Where::ordinary, Match::bits);
      }
    }
  });
}

TEST_CASE("what is larger than a carrier's buffers passes in rounds") {
  if (!has_gloo()) return;
  for (const std::size_t buffer_bytes : {1, 100, 4096}) {  // 1: an element at a time
    Engines engines = make_gloo_engines(3, buffer_bytes);
    run_ranks_or_throw(3, [&](int rank) {
      std::mt19937 own(static_cast<unsigned>(rank));
      Engine& engine = *engines[static_cast<std::size_t>(rank)];
      for (const OpTraits& traits : kOpTable) {
        run_case(engine, case_of(traits.kind, ReduceOp::max, DType::i32, 3, 1), own, Where::ordinary, Match::value);
      }
      if (buffer_bytes < 4096) return;
      run_case(engine, {.kind = OpKind::all_reduce, .dtype = DType::f32, .count = 50'001}, own, Where::ordinary,
               Match::value);
      const Case uneven{.kind = OpKind::all_to_all, .dtype = DType::f64, .counts = {0, 9000, 1, 3, 0, 0, 0, 0, 700}};
      run_case(engine, uneven, own, Where::ordinary, Match::value);
    });
  }
}

TEST_CASE("ranks in different collectives all get both signatures, and no data is touched") {
  if (!has_gloo()) return;
  Engines engines = make_gloo_engines(3);
  const auto errors = run_ranks(3, [&](int rank) {
    std::vector<float> data(5, static_cast<float>(rank));
    const std::uint64_t count = rank == 1 ? 5 : 4;
    const Segment segment{reinterpret_cast<std::byte*>(data.data()), count * 4};
    try {
      engines[static_cast<std::size_t>(rank)]->run(
          {.kind = OpKind::all_reduce, .dtype = DType::f32, .count = count, .output = {&segment, 1}}, soon());
    } catch (...) {
      CHECK(data == std::vector<float>(5, static_cast<float>(rank)));
      throw;
    }
  });
  for (const auto& error : errors) {
    CHECK_ERROR(error_in(error), ErrorKind::desync, "rank 1 in all_reduce(sum) #1 of 5 float32",
                "all_reduce(sum) #1 of 4 float32", "all ranks must make the same calls in the same order");
  }
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK_ERROR(error_of([&] { engines[r]->run({}, soon()); }), ErrorKind::desync, error_in(errors[r]).what());
  }
}

TEST_CASE("a timeout names the missing rank, also to that rank when it comes") {
  if (!has_gloo()) return;
  Engines engines = make_gloo_engines(3);
  const auto start = std::chrono::steady_clock::now();
  const auto errors = run_ranks(3, [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    engine.run({}, soon());
    if (rank != 2) engine.run({}, Deadline::after(300ms));
  });
  CHECK(std::chrono::steady_clock::now() - start < 4s);
  for (const std::size_t r : {0U, 1U}) {
    CHECK_ERROR(error_in(errors[r]), ErrorKind::timeout, "barrier #2 failed on rank " + std::to_string(r),
                "missing: rank 2");
  }
  CHECK_ERROR(error_of([&] { engines[2]->run({}, soon()); }), ErrorKind::timeout, "missing: rank 2");
}

TEST_CASE("a rank that leaves is named to those who wait for it") {
  if (!has_gloo()) return;
  Engines engines = make_gloo_engines(3);
  const auto errors = run_ranks(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    engines[r]->run({}, soon());
    if (rank == 1) return engines[r].reset();
    engines[r]->run({}, soon());
  });
  for (const std::size_t r : {0U, 2U}) {
    CHECK_ERROR(error_in(errors[r]), ErrorKind::peer_lost, "rank 1 died or left the group", "barrier #2");
  }
}

TEST_CASE("abort ends a waiting peer at once, and every later call, and quotes the reason") {
  if (!has_gloo()) return;
  Engines engines = make_gloo_engines(2);
  const auto start = std::chrono::steady_clock::now();
  const auto errors = run_ranks(2, [&](int rank) {
    if (rank == 0) engines[0]->run({}, soon());
    if (rank == 1) engines[1]->abort("loss is NaN");
  });
  CHECK(std::chrono::steady_clock::now() - start < 3s);
  CHECK_ERROR(error_in(errors[0]), ErrorKind::aborted, "rank 1 ended the group: loss is NaN");
  CHECK_ERROR(error_of([&] { engines[1]->run({}, soon()); }), ErrorKind::aborted, "loss is NaN");
}

TEST_CASE("a rank that does not come to the meeting is missed at the deadline") {
  if (!has_gloo()) return;
  const CarrierSite site{.size = 2,
                         .group = "alone",
                         .address = "127.0.0.1",
                         .members = {"rank 0", "rank 1"},
                         .store = std::make_shared<MemoryStore>()};
  CHECK_ERROR(error_of([&] { make_backend_engine("gloo", site, Deadline::after(300ms)); }), ErrorKind::timeout,
              "the Gloo rendezvous timed out");
}

// feature: L-05
TEST_CASE("nccl does what it claims to, with one rank, and nothing after an abort" * needs("gpu")) {
  if (!has("nccl")) return;
  if (!at::hasCUDA()) return skip("no CUDA device");
  const CommunicatorLibrary& nccl = *communicators_for(at::kCUDA);
  const at::Device device(at::kCUDA, 0);
  CHECK_FALSE(nccl.identity(device).empty());
  const std::unique_ptr<Communicator> one =
      nccl.connect({.device = device, .id = nccl.make_id(), .deadline = soon(), .check_alive = [] {}});
  const c10::Stream stream = c10::impl::VirtualGuardImpl(at::kCUDA).getStream(device);
  constexpr std::size_t kCount = 5;
  const std::array<std::size_t, 1> counts{kCount};
  int calls = 0;
  for (const OpTraits& traits : kOpTable) {
    for (int type = 0; type <= static_cast<int>(DType::opaque); ++type) {
      const auto dtype = static_cast<DType>(type);
      for (const ReduceOp op : kReductions) {
        if (!nccl.supports(traits.kind, op, dtype)) continue;
        const auto bytes = static_cast<std::int64_t>(kCount * element_size(dtype));
        const at::Tensor input = at::ones({bytes}, at::TensorOptions(at::kByte).device(device));
        const at::Tensor output = traits.is_in_place() ? input : at::zeros_like(input);
        one->enqueue({.kind = traits.kind,
                      .reduce = op,
                      .dtype = dtype,
                      .count = traits.kind == OpKind::all_to_all ? 0 : kCount,
                      .input = static_cast<std::byte*>(input.mutable_data_ptr()),
                      .output = static_cast<std::byte*>(output.mutable_data_ptr()),
                      .sent = counts,
                      .received = counts},
                     stream);
        INFO(to_string(traits.kind) << ' ' << to_string(op) << ' ' << to_string(dtype));
        CHECK(output.eq(1).all().item<bool>());
        ++calls;
      }
    }
  }
  CHECK(calls > 100);
  CHECK(one->failure() == "");
  one->abort();
  CHECK_ERROR(error_of([&] { one->enqueue({.kind = OpKind::broadcast}, stream); }), ErrorKind::aborted, "aborted");
}

TEST_CASE("nccl notices at the deadline that a rank does not come" * needs("gpu")) {
  if (!has("nccl")) return;
  if (!at::hasCUDA()) return skip("no CUDA device");
  const CommunicatorLibrary& nccl = *communicators_for(at::kCUDA);
  CommunicatorSite site{.size = 2, .device = at::Device(at::kCUDA, 0), .id = nccl.make_id(), .check_alive = [] {}};
  site.deadline = Deadline::after(500ms);
  CHECK_ERROR(error_of([&] { nccl.connect(site); }), ErrorKind::timeout, "NCCL did not connect the ranks");
  site.deadline = soon();
  site.check_alive = [] { throw Error(ErrorKind::peer_lost, "rank 1 has died"); };
  site.id = nccl.make_id();
  CHECK_ERROR(error_of([&] { nccl.connect(site); }), ErrorKind::peer_lost, "rank 1 has died");
}

}  // namespace carriers_test
