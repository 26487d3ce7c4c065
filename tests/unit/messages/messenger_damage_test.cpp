// Messages over a network that flips a bit: nothing damaged is delivered, and all ranks are told between whom it was.
#include <doctest/doctest.h>

#include <memory>

#include "tests/support/chaos_proxy.h"
#include "tests/support/detour_store.h"
#include "tests/support/expect_error.h"
#include "tests/unit/messages/messenger_fixture.h"

namespace messenger_damage_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

constexpr int kRanks = 3;
constexpr int kData = 1;  // of rank 1's connections to rank 0, the second

// Messengers of which ranks 0 and 1 meet through a proxy.
struct Flipped {
  // The bit is in what rank 1 sends to rank 0.
  explicit Flipped(std::uint64_t at) {
    ChaosPlan plan{.seed = at};
    plan.fault = [at](int number) { return number == kData ? Fault{Fault::Kind::flip, Way::to_server, at} : Fault(); };
    MemoryStore store;
    const Token token = Token::generate();
    std::vector<std::unique_ptr<Mesh>> meshes(kRanks);
    run_ranks_or_throw(kRanks, [&](int rank) {
      DetourStore detour(store, [&](std::string_view key, Bytes value) {
        if (rank != 1 || !key.ends_with("/0")) return value;
        proxy = std::make_unique<ChaosProxy>(parse_endpoint(value), plan);
        return Bytes(to_string(proxy->endpoint()));
      });
      meshes[static_cast<std::size_t>(rank)] = connect_tcp_mesh(tcp_mesh_settings(rank, kRanks, token), detour, soon());
    });
    handshake_bytes = proxy->passed(kData, Way::to_server);
    messengers = make_messengers(std::move(meshes));
  }

  std::unique_ptr<ChaosProxy> proxy;
  std::uint64_t handshake_bytes = 0;
  Messengers messengers;
};

}  // namespace

// fault: 20
TEST_CASE("a flipped bit in messages is corrupt_data for all ranks, and is not delivered") {
  constexpr std::size_t kBytes = 400'000;
  const std::uint64_t handshake = Flipped(~std::uint64_t{0}).handshake_bytes;
  for (const std::uint64_t at : {0, 5, 20, 60, 10'000, 300'000}) {
    CAPTURE(at);
    Flipped flipped(handshake + at);
    Messengers& ranks = flipped.messengers;
    const Buffer small = content(100, 1), large = content(kBytes, 2);
    Buffer small_here(100), large_here(kBytes), elsewhere(4), here(4);
    const Request idle = ranks[2]->receive(0, 1, elsewhere, soon());
    const Request waits = ranks[1]->receive(2, 1, here, soon());
    const Request receive_small = ranks[0]->receive(1, 1, small_here, soon());
    const Request receive_large = ranks[0]->receive(1, 2, large_here, soon());
    const Request send_small = ranks[1]->send(0, 1, small, soon());
    const Request send_large = ranks[1]->send(0, 2, large, soon());
    const auto told = [](const Request& transfer) {
      CHECK_ERROR(error_of([&] { transfer.wait(soon()); }), ErrorKind::corrupt_data, "data from rank 1 (host ",
                  " to rank 0 (host ", "was damaged on its way");
    };
    told(receive_large);
    told(idle);
    told(waits);
    if (receive_small.source() == 1) CHECK(small_here == small);  // it came before
    told(ranks[1]->send(0, 3, small, soon()));
    told(ranks[2]->send(1, 3, small, soon()));
  }
}

}  // namespace messenger_damage_test
