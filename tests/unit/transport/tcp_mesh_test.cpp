// How a TCP mesh comes about, whom it refuses, and how it notices that a peer died.
#include "lockstep/comm/transport/tcp_mesh.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/net/handshake.h"
#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/transport/byte_rings.h"
#include "lockstep/comm/transport/control_message.h"
#include "lockstep/comm/transport/link_claim.h"
#include "lockstep/comm/transport/tcp_links.h"
#include "tests/support/expect_error.h"
#include "tests/support/tcp_meshes.h"

namespace tcp_mesh_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

constexpr GroupId kGroup = hash_of("test");

Deadline soon() { return Deadline::after(20s); }

// A mesh of two in which rank 1 is played by the test, which holds its bare connections; without checksums.
struct MeshAndPuppet {
  MeshAndPuppet() {
    MemoryStore store;
    const Token token = Token::generate();
    run_ranks_or_throw(2, [&](int rank) {
      auto settings = tcp_mesh_settings(rank, 2, token);
      settings.checksums = Checksums::off;
      if (rank == 0) {
        mesh = connect_tcp_mesh(settings, store, soon());
      } else {
        puppet = std::move(connect_tcp_links(settings, store, soon()).links[0]);
      }
    });
  }
  void wait_for_data() {
    std::array<std::byte, 8> buffer;
    while (mesh->recv_some(1, buffer) == 0) mesh->wait(std::array{Mesh::Interest{1, true, false}}, soon());
  }

  std::unique_ptr<Mesh> mesh;
  TcpLink puppet;
};

// Waits for a rank's published address, then connects and shakes hands under the given claims.
UniqueFd intrude(Store& store, const TcpMeshSettings& settings, std::uint64_t number, std::uint32_t pid = 0,
                 int to = 0) {
  const std::string key = "mesh/test/" + std::to_string(to);
  UniqueFd fd = connect_tcp(parse_endpoint(store.get(key, soon())), ConnectRetry::never, soon());
  PeerIdentity claims = local_identity(settings.rank, settings.size, settings.generation);
  claims.number = encode(LinkClaim{static_cast<std::uint32_t>(number), static_cast<std::size_t>(settings.connections),
                                   settings.checksums});
  claims.text = settings.name;
  if (pid != 0) claims.pid = pid;
  handshake_as_client(fd.get(), {settings.token, settings.job_id, Channel::link, claims}, soon());
  return fd;
}

}  // namespace

TEST_CASE("a mesh of one needs nobody") {
  MemoryStore store;
  const auto mesh = connect_tcp_mesh(tcp_mesh_settings(0, 1, Token::generate()), store, soon());
  CHECK(mesh->size() == 1);
  mesh->wait({}, soon());
  mesh->abort(Error(ErrorKind::aborted, "enough"));
  CHECK_ERROR(error_of([&] { mesh->wait({}, soon()); }), ErrorKind::aborted, "enough");
}

TEST_CASE("nothing stays in the store once all are connected") {
  MemoryStore store;
  const Token token = Token::generate();
  std::vector<std::unique_ptr<Mesh>> meshes(4);
  run_ranks_or_throw(4, [&](int rank) {
    meshes[static_cast<std::size_t>(rank)] = connect_tcp_mesh(tcp_mesh_settings(rank, 4, token), store, soon());
  });
  for (int rank = 0; rank < 4; ++rank) CHECK_FALSE(store.remove("mesh/test/" + std::to_string(rank), soon()));
}

TEST_CASE("ranks that do not come are named at the deadline") {
  MemoryStore store;
  const Token token = Token::generate();
  const auto errors = run_ranks(4, [&](int rank) {
    if (rank % 2 == 0) connect_tcp_mesh(tcp_mesh_settings(rank, 4, token), store, Deadline::after(1s));
  });
  for (const std::size_t rank : {0, 2}) {
    const Error error = error_of([&] { std::rethrow_exception(errors[rank]); });
    CHECK_ERROR(error, ErrorKind::timeout, "group 'test'", "rank(s) 1, 3 (world size 4) have not joined");
    CHECK(error.detail().peer == 1);
  }
}

TEST_CASE("a rank that published its address and then does not connect is named") {
  MemoryStore store;
  store.set("mesh/test/1", "127.0.0.1:1", soon());
  const auto settings = tcp_mesh_settings(0, 2, Token::generate());
  CHECK_ERROR(error_of([&] { connect_tcp_mesh(settings, store, Deadline::after(100ms)); }), ErrorKind::timeout,
              "rank(s) 1 (world size 2) have not connected");
}

TEST_CASE("a lower rank that is gone is named with its address") {
  MemoryStore store;
  store.set("mesh/test/0", "127.0.0.1:1", soon());
  const auto settings = tcp_mesh_settings(1, 2, Token::generate());
  CHECK_ERROR(error_of([&] { connect_tcp_mesh(settings, store, soon()); }), ErrorKind::peer_lost,
              "rank 1 cannot connect to rank 0 at 127.0.0.1:1");
}

TEST_CASE("nobody goes on before all ranks are connected with each other") {
  MemoryStore store;
  const Token token = Token::generate();
  std::atomic<bool> is_dead{false};
  // Rank 2 connects with rank 0, tells it that it is connected with all, and dies before it connects with rank 1.
  const auto errors = run_ranks(3, [&](int rank) {
    auto settings = tcp_mesh_settings(rank, 3, token);
    if (rank == 2) {
      store.set("mesh/test/2", "127.0.0.1:1", soon());
      const UniqueFd control = intrude(store, settings, 0);
      const UniqueFd data = intrude(store, settings, 1);
      send_frame(control.get(), encode(ControlKind::connected, kGroup), kMaxControlBytes, soon());
      is_dead = true;
      return;
    }
    settings.check_alive = [&] {
      if (rank == 1 && is_dead) throw Error(ErrorKind::peer_lost, "rank 2 has died");
    };
    connect_tcp_mesh(settings, store, soon());
  });
  CHECK_ERROR(error_of([&] { std::rethrow_exception(errors[1]); }), ErrorKind::peer_lost, "rank 2 has died");
  REQUIRE(errors[0]);
  CHECK_ERROR(error_of([&] { std::rethrow_exception(errors[0]); }), ErrorKind::peer_lost, "rank 2 has died");
}

TEST_CASE("a rank that has gone on is told by one that cannot who has died") {
  MemoryStore store;
  const Token token = Token::generate();
  std::promise<void> gone_on, told;
  const auto errors = run_ranks(3, [&](int rank) {
    const auto settings = tcp_mesh_settings(rank, 3, token);
    if (rank == 2) {  // dies when it has said to rank 0 that it is connected, and not yet to rank 1
      store.set("mesh/test/2", "127.0.0.1:1", soon());
      std::vector<UniqueFd> fds;
      for (const int to : {0, 1}) {
        for (const std::uint64_t number : {0u, 1u}) fds.push_back(intrude(store, settings, number, 0, to));
      }
      send_frame(fds[0].get(), encode(ControlKind::connected, kGroup), kMaxControlBytes, soon());
      gone_on.get_future().wait();
      fds.resize(2);
      told.get_future().wait();  // what rank 0 sees of the death itself comes too late
      return;
    }
    const auto mesh = connect_tcp_mesh(settings, store, soon());
    gone_on.set_value();
    std::array<std::byte, 8> buffer;
    const Error error = error_of([&] {
      while (mesh->recv_some(1, buffer) == 0) mesh->wait(std::array{Mesh::Interest{1, true, false}}, soon());
    });
    told.set_value();
    throw Error(error);
  });
  for (const std::size_t rank : {0, 1}) {
    const Error error = error_of([&] { std::rethrow_exception(errors[rank]); });
    CHECK_ERROR(error, ErrorKind::peer_lost, "rank 2 (host ", "was lost before all ranks were connected");
    CHECK(error.detail().peer == 2);
  }
}

TEST_CASE("who loses a peer while connecting asks for the cause before it closes anything") {
  MemoryStore store;
  const Token token = Token::generate();
  std::promise<Endpoint> address;
  const auto errors = run_ranks(2, [&](int rank) {
    auto settings = tcp_mesh_settings(rank, 2, token);
    if (rank == 1) {  // dies before it has said that it is connected
      store.set("mesh/test/1", "127.0.0.1:1", soon());
      address.set_value(parse_endpoint(store.get("mesh/test/0", soon())));
      const UniqueFd control = intrude(store, settings, 0);
      const UniqueFd data = intrude(store, settings, 1);
      return;
    }
    settings.cause_of = [&](const Error& error) {
      CHECK_ERROR(error, ErrorKind::peer_lost, "rank 1 (host ", "was lost before all ranks were connected");
      CHECK(error.detail().peer == 1);
      CHECK(connect_tcp(address.get_future().get(), ConnectRetry::never, soon()));  // still listens
      return Error(ErrorKind::peer_lost, "rank 7 had died");
    };
    connect_tcp_mesh(settings, store, soon());
  });
  CHECK_ERROR(error_of([&] { std::rethrow_exception(errors[0]); }), ErrorKind::peer_lost, "rank 7 had died");
}

TEST_CASE("a rank that nobody has met is called by the name that it has in the job") {
  MemoryStore store;
  store.set("mesh/test/0", "127.0.0.1:1", soon());
  auto settings = tcp_mesh_settings(1, 2, Token::generate());
  settings.name_of = [](int rank) { return "rank " + std::to_string(rank) + " (host n1, pid 811)"; };
  CHECK_ERROR(error_of([&] { connect_tcp_mesh(settings, store, soon()); }), ErrorKind::peer_lost,
              "rank 1 cannot connect to rank 0 (host n1, pid 811) at 127.0.0.1:1");
}

// fault: 52
TEST_CASE("without descriptors a rank says so at once, and meshes that exist live on") {
  auto meshes = make_tcp_meshes(2);
  MemoryStore store;
  rlimit limits{};
  ::getrlimit(RLIMIT_NOFILE, &limits);
  const rlim_t before = limits.rlim_cur;
  const UniqueFd next(::dup(0));
  const Token token = Token::generate();
  // None for a listener; one, but none for a connection to it.
  for (const int more : {0, 2}) {
    limits.rlim_cur = static_cast<rlim_t>(next.get() + 1 + more);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &limits) == 0);
    const TimePoint start = steady_clock().now();
    const auto errors = run_ranks(
        2, [&](int rank) { connect_tcp_mesh(tcp_mesh_settings(rank, 2, token), store, Deadline::after(1s)); });
    limits.rlim_cur = before;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &limits) == 0);
    CHECK(steady_clock().now() - start < 3s);
    REQUIRE(errors[0]);
    REQUIRE(errors[1]);
    int named = 0;
    for (const auto& each : errors) {
      const Error error = error_of([&] { std::rethrow_exception(each); });
      CAPTURE(error.what());
      CHECK((error.kind() == ErrorKind::internal || error.kind() == ErrorKind::timeout ||
             error.kind() == ErrorKind::peer_lost));
      if (!contains(error.what(), "Too many open files")) continue;
      CHECK(contains(error.what(), "descriptors: raise the limit (ulimit -n) before it starts"));
      ++named;
    }
    CHECK(named > 0);
  }
  CHECK(meshes[0]->send_some(1, as_span(ByteView("hello"))) == 5);
  std::array<std::byte, 8> buffer{};
  meshes[1]->wait(std::array{Mesh::Interest{0, true, false}}, soon());
  CHECK(meshes[1]->recv_some(0, buffer) == 5);
}

TEST_CASE("arguments that make no mesh are refused") {
  MemoryStore store;
  auto settings = tcp_mesh_settings(2, 2, Token::generate());
  CHECK_ERROR(error_of([&] { connect_tcp_mesh(settings, store, soon()); }), ErrorKind::invalid_argument,
              "no rank 2 in a group of 2");
  settings.rank = 0;
  settings.name = std::string(65, 'x');
  CHECK_ERROR(error_of([&] { connect_tcp_mesh(settings, store, soon()); }), ErrorKind::invalid_argument, "65");
}

TEST_CASE("who does not belong is refused with the reason, and the mesh comes about all the same") {
  MemoryStore store;
  const Token token = Token::generate();
  std::vector<std::unique_ptr<Mesh>> meshes(2);
  run_ranks_or_throw(3, [&](int rank) {
    if (rank == 0) {
      meshes[0] = connect_tcp_mesh(tcp_mesh_settings(0, 2, token), store, soon());
      return;
    }
    if (rank == 1) return;
    // Rank 0 accepts once rank 1 has published its address, which the intruders do in its place.
    store.set("mesh/test/1", "127.0.0.1:1", soon());
    const UniqueFd silent = connect_tcp(parse_endpoint(store.get("mesh/test/0", soon())), ConnectRetry::never, soon());
    const auto attempt = [&](auto change, std::uint64_t number) {
      auto settings = tcp_mesh_settings(1, 2, token);
      change(settings);
      return error_of([&] { intrude(store, settings, number); });
    };
    CHECK_ERROR(attempt([](auto& s) { s.token = Token::generate(); }, 0), ErrorKind::unauthorized);
    CHECK_ERROR(attempt([](auto& s) { s.job_id = "other"; }, 0), ErrorKind::unauthorized);
    CHECK_ERROR(attempt([](auto& s) { s.generation = 4; }, 0), ErrorKind::invalid_argument,
                "this is generation 5, not 4");
    CHECK_ERROR(attempt([](auto& s) { s.size = 3; }, 0), ErrorKind::invalid_argument, "has 2 ranks, not 3");
    CHECK_ERROR(attempt([](auto& s) { s.rank = 7; }, 0), ErrorKind::invalid_argument,
                "no rank 7 connects to rank 0 of 2");
    CHECK_ERROR(attempt([](auto& s) { s.rank = 0; }, 0), ErrorKind::invalid_argument,
                "no rank 0 connects to rank 0 of 2");
    CHECK_ERROR(attempt([](auto& s) { s.name = "else"; }, 0), ErrorKind::invalid_argument,
                "this is group 'test', not 'else'");
    CHECK_ERROR(attempt([](auto&) {}, 2), ErrorKind::invalid_argument, "no connection number 2");
    // The silent stranger is still connected while rank 1 itself comes.
    meshes[1] = connect_tcp_mesh(tcp_mesh_settings(1, 2, token), store, soon());
  });
  REQUIRE(meshes[0]->send_some(1, as_span(ByteView("hi"))) == 2);
}

TEST_CASE("ranks that want different numbers of connections both learn of it at once, whichever wants more") {
  for (const std::array<int, 2> wanted : {std::array{1, 3}, std::array{3, 1}}) {
    MemoryStore store;
    const Token token = Token::generate();
    const TimePoint start = steady_clock().now();
    const auto errors = run_ranks(2, [&](int rank) {
      auto settings = tcp_mesh_settings(rank, 2, token);
      settings.connections = wanted[static_cast<std::size_t>(rank)];
      connect_tcp_mesh(settings, store, soon());
    });
    CHECK(steady_clock().now() - start < 5s);
    for (int rank = 0; rank < 2; ++rank) {
      const Error error = error_of([&] { std::rethrow_exception(errors[static_cast<std::size_t>(rank)]); });
      CHECK_ERROR(error, ErrorKind::invalid_argument, "group 'test': ", "rank 1 (host ",
                  " makes " + std::to_string(wanted[1]) + " connections for data where rank 0 expects " +
                      std::to_string(wanted[0]),
                  "LOCKSTEP_CONNECTIONS", "must be the same on all ranks");
      CHECK(error.detail().rank == rank);
      CHECK(error.detail().peer == 1 - rank);
    }
  }
}

TEST_CASE("ranks that differ in whether data carry checksums both learn of it at once") {
  for (const Checksums of_rank_0 : {Checksums::on, Checksums::off}) {
    MemoryStore store;
    const Token token = Token::generate();
    const auto errors = run_ranks(2, [&](int rank) {
      auto settings = tcp_mesh_settings(rank, 2, token);
      settings.checksums = (of_rank_0 == Checksums::on) == (rank == 0) ? Checksums::on : Checksums::off;
      connect_tcp_mesh(settings, store, soon());
    });
    const char* what = of_rank_0 == Checksums::on ? "without checksums where rank 0 expects it with them"
                                                  : "with checksums where rank 0 expects it without";
    for (int rank = 0; rank < 2; ++rank) {
      const Error error = error_of([&] { std::rethrow_exception(errors[static_cast<std::size_t>(rank)]); });
      CHECK_ERROR(error, ErrorKind::invalid_argument, "group 'test': ", "rank 1 (host ", what, "LOCKSTEP_CHECKSUMS",
                  "must be the same on all ranks");
      CHECK(error.detail().peer == 1 - rank);
    }
  }
}

TEST_CASE("a number of connections that is out of range is refused before anybody hears of it") {
  MemoryStore store;
  for (const int connections : {-1, 0, kMaxConnections + 1}) {
    auto settings = tcp_mesh_settings(1, 2, Token::generate());
    settings.connections = connections;
    const Error error = error_of([&] { connect_tcp_mesh(settings, store, soon()); });
    CHECK_ERROR(error, ErrorKind::invalid_argument, "group 'test': rank 1 asks for " + std::to_string(connections),
                "1 to 64 are possible");
    CHECK(error.detail().rank == 1);
  }
}

TEST_CASE("a damaged ring of shared memory is an error for its sender and its receiver, other links go on") {
  MemoryStore store;
  const Token token = Token::generate();
  const ByteRings rings = make_rings(2);
  std::vector<std::unique_ptr<Mesh>> meshes(3);
  run_ranks_or_throw(3, [&](int rank) {
    auto settings = tcp_mesh_settings(rank, 3, token);
    if (rank < 2) settings.node = {.ranks = {0, 1}, .rings = rings};
    meshes[static_cast<std::size_t>(rank)] = connect_tcp_mesh(settings, store, soon());
  });
  rings.ring(1, 0).control->sent = arena::kRingBytes + 1;
  std::array<std::byte, 4> four{};
  Error error = error_of([&] { meshes[0]->recv_some(1, four); });
  CHECK_ERROR(error, ErrorKind::corrupt_data, "the ring of shared memory between rank 0 and rank 1 (host ", "damaged",
              "131073 bytes have been sent and 0 received", "start the job again");
  CHECK(error.detail().rank == 0);
  CHECK(error.detail().peer == 1);
  error = error_of([&] { meshes[1]->send_some(0, four); });
  CHECK_ERROR(error, ErrorKind::corrupt_data, "between rank 1 and rank 0 (host ", "damaged");
  CHECK(error.detail().peer == 0);
  CHECK(meshes[0]->send_some(1, four) == 4);
  CHECK(meshes[0]->send_some(2, four) == 4);
}

TEST_CASE("a second claimant of a rank is refused, with the first one named") {
  MemoryStore store;
  const Token token = Token::generate();
  const auto errors = run_ranks(3, [&](int rank) {
    if (rank == 2) {
      store.set("mesh/test/1", "127.0.0.1:1", soon());
      store.set("mesh/test/2", "127.0.0.1:1", soon());
      intrude(store, tcp_mesh_settings(2, 3, token), 0);
      intrude(store, tcp_mesh_settings(2, 3, token), 0);  // the same process, which may have missed the answer
      intrude(store, tcp_mesh_settings(2, 3, token), 0, 1);
    } else if (rank == 0) {
      connect_tcp_mesh(tcp_mesh_settings(0, 3, token), store, Deadline::after(1s));
    }
  });
  CHECK_ERROR(error_of([&] { std::rethrow_exception(errors[2]); }), ErrorKind::invalid_argument, "rank 2",
              "is already connected", "host");
  CHECK_ERROR(error_of([&] { std::rethrow_exception(errors[0]); }), ErrorKind::timeout,
              "rank(s) 1, 2 (world size 3) have not connected");
}

TEST_CASE("a peer whose process dies is reported at once, with rank, host and pid") {
  MeshAndPuppet both;
  const TimePoint start = steady_clock().now();
  std::jthread killer([&] { both.puppet = {}; });  // as the kernel does when a process ends
  const Error error = error_of([&] { both.wait_for_data(); });
  CHECK_ERROR(error, ErrorKind::peer_lost, "rank 1", "host", "pid", "its process ended");
  CHECK(error.detail().peer == 1);
  CHECK(seconds(steady_clock().now() - start) < 5);
}

TEST_CASE("death is noticed on the control connection alone, once, and what was sent before is still received") {
  MeshAndPuppet both;
  CheckedSender sender(Checksums::off);
  REQUIRE(sender.send(both.puppet.data.front().get(), kGroup, as_span(ByteView("words"))) == 5);
  both.puppet.control.reset();
  const std::array interest{Mesh::Interest{1, true, false}};
  const auto wait_until_reported = [&] {
    for (;;) {
      both.mesh->wait({}, soon());
      std::this_thread::yield();
    }
  };
  CHECK_ERROR(error_of(wait_until_reported), ErrorKind::peer_lost, "rank 1", "its process ended");
  both.mesh->wait({}, soon());
  both.mesh->wait(interest, soon());
  std::array<std::byte, 8> buffer;
  CHECK(both.mesh->recv_some(1, buffer) == 5);
  CHECK_ERROR(error_of([&] { both.mesh->recv_some(1, buffer); }), ErrorKind::peer_lost, "rank 1");
}

TEST_CASE("a reset connection is a lost peer, for the sender too") {
  MeshAndPuppet both;
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  REQUIRE(::setsockopt(both.puppet.data.front().get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
  both.puppet.data.front().reset();
  const Error error = error_of([&] {
    for (;;) both.mesh->send_some(1, as_span(ByteView("x")));
  });
  CHECK_ERROR(error, ErrorKind::peer_lost, "rank 1 (host");
}

TEST_CASE("nonsense on the control connection ends the group and names its sender") {
  const auto send = [](const Bytes& bytes) {
    MeshAndPuppet both;
    send_all(both.puppet.control.get(), as_span(ByteView(bytes)), soon());
    const Error error = error_of([&] { both.wait_for_data(); });
    CHECK(error.detail().peer == 1);
    return error;
  };
  const auto framed = [](const Bytes& message) { return frame(message, kMaxControlBytes); };
  CHECK_ERROR(send("\xFF\xFF\xFF\xFF rubbish"), ErrorKind::corrupt_data, "rank 1 (host", "the limit is 4096");
  CHECK_ERROR(send(framed("\x09")), ErrorKind::corrupt_data, "rank 1's control message: the kind is 9");
  CHECK_ERROR(send(framed(encode(ControlKind::bell, kGroup) + "more")), ErrorKind::corrupt_data, "4 trailing bytes");
  const Error nobody(ErrorKind::peer_lost, "rank 1000000 has died", {.peer = 1'000'000});
  CHECK_ERROR(send(framed(encode_abort(kGroup, nobody))), ErrorKind::corrupt_data,
              "the rank is 1000000; expected -1 to 1");
  Bytes unknown = encode_abort(kGroup, nobody);
  unknown[9] = 99;
  CHECK_ERROR(send(framed(unknown)), ErrorKind::corrupt_data, "kind of error is 99");
}

}  // namespace tcp_mesh_test
