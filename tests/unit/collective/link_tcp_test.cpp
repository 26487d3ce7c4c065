// The LinkEngine over real sockets.
#include <doctest/doctest.h>

#include <chrono>
#include <string>

#include "lockstep/base/hash.h"
#include "lockstep/comm/transport/tcp_links.h"
#include "tests/support/expect_error.h"
#include "tests/support/sanitized.h"
#include "tests/support/tcp_meshes.h"
#include "tests/unit/collective/link_fixture.h"

namespace link_tcp_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

TEST_CASE("collectives over TCP give what they give in process") {
  constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8};
  std::mt19937 random(9);
  for (const int size : {2, 3, 4, 8}) {
    if (kIsSanitized && size > 3) continue;
    CAPTURE(size);
    const int complete_up_to = size % 2 == 0 ? size : kWhenNeeded;
    Engines engines = make_link_engines(make_tcp_meshes(size, 1, 0, Checksums::on, complete_up_to));
    CHECK(engines[0]->name() == "tcp");
    for (const DType dtype : kDTypes) {
      for (const std::size_t count : {0, 1, 1000, kIsSanitized ? 20'001 : 65'537}) {
        CHECK(run_row(engines, {.dtype = dtype, .count = count}, 2, random) == "");
      }
    }
    CHECK(run_row(engines, {.reduce = ReduceOp::avg, .count = kIsSanitized ? 1 << 18 : 1 << 20}, 1, random) == "");
    for (const std::size_t count : {3, 100'000}) {
      for (int root = 0; root < size; ++root) {
        CHECK(run_row(engines, {.kind = OpKind::broadcast, .root = root, .count = count}, 2, random) == "");
      }
      CHECK(run_row(engines, {.kind = OpKind::all_gather, .dtype = DType::i64, .count = count}, 3, random) == "");
      CHECK(run_row(engines, {.kind = OpKind::reduce_scatter, .reduce = ReduceOp::max, .count = count}, 3, random) ==
            "");
    }
    for (int step = 0; step < 20; ++step) CHECK(run_row(engines, {.kind = OpKind::barrier}, 1, random) == "");
  }
}

TEST_CASE("ranks that leave on a desync leave nobody in the dark") {
  for (int round = 0; round < 10; ++round) {
    Engines engines = make_link_engines(make_tcp_meshes(3, 1, 0, Checksums::on, round % 2 == 0 ? 3 : kWhenNeeded));
    const auto errors = run_ranks(3, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      Buffer memory(4 << 20);
      const Segment output[] = {{memory.data(), memory.size()}};
      try {
        engines[r]->run(
            {.kind = OpKind::all_reduce, .count = memory.size(), .name = rank == 1 ? 5U : 6U, .output = output},
            soon());
      } catch (...) {
        engines[r].reset();
        throw;
      }
    });
    for (const auto& error : errors) {
      REQUIRE(error);
      CHECK_ERROR(error_of([&] { std::rethrow_exception(error); }), ErrorKind::desync, "name 0000000000000005",
                  "name 0000000000000006", "rank 1 (host ");
    }
  }
}

TEST_CASE("a process that dies in the middle of an all_reduce is named by everybody at once") {
  constexpr int kSize = 4;
  MemoryStore store;
  const Token token = Token::generate();
  std::vector<TcpLink> victim;
  const auto errors = run_ranks(kSize, [&](int rank) {
    const auto settings = tcp_mesh_settings(rank, kSize, token);
    Buffer memory(8 << 20);
    if (rank == 2) {
      victim = connect_tcp_links(settings, store, soon()).links;
      // It has sent its signature and part of its data to all when it dies.
      Signature signature{.sequence = 1, .count = memory.size(), .kind = OpKind::all_reduce, .generation = 7};
      signature.check = check_of(signature);
      for (TcpLink& link : victim) {
        if (link.data.empty() || !link.data.front()) continue;
        CheckedSender sender(Checksums::on);
        sender.send(link.data.front().get(), hash_of("test"), std::as_bytes(std::span(&signature, 1)));
        sender.send(link.data.front().get(), hash_of("test"), std::span(memory).first(10'000));
      }
      victim.clear();
      return;
    }
    LinkEngine engine(connect_tcp_mesh(settings, store, soon()), 7);
    const Segment output[] = {{memory.data(), memory.size()}};
    engine.run({.kind = OpKind::all_reduce, .count = memory.size(), .output = output}, soon());
  });
  for (const std::size_t rank : {0, 1, 3}) {
    const Error error = error_of([&] { std::rethrow_exception(errors[rank]); });
    CHECK_ERROR(error, ErrorKind::peer_lost, "all_reduce(sum) #1 of 8388608 uint8", "rank 2 (host");
    CHECK(error.detail().peer == 2);
    CHECK(error.detail().elapsed_seconds < 5);
  }
}

TEST_CASE("a large all_reduce over TCP is aborted by a rank that does not take part") {
  Engines engines = make_link_engines(make_tcp_meshes(3));
  const auto errors = run_ranks(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    Buffer memory(8 << 20);
    const Segment output[] = {{memory.data(), memory.size()}};
    if (rank == 1) engines[r]->abort("the data loader failed");
    engines[r]->run({.kind = OpKind::all_reduce, .count = memory.size(), .output = output}, soon());
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK_ERROR(error_of([&] { std::rethrow_exception(error); }), ErrorKind::aborted,
                "rank 1 ended the group: the data loader failed");
  }
}

}  // namespace link_tcp_test
