// Connections that are made when a group first needs them.
#include "lockstep/comm/transport/link_opener.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/net/listener.h"
#include "lockstep/comm/store/memory_store.h"
#include "lockstep/comm/transport/shared_links.h"
#include "tests/support/expect_error.h"
#include "tests/support/network_namespace.h"
#include "tests/support/rank_threads.h"
#include "tests/support/sanitized.h"
#include "tests/support/shared_meshes.h"

namespace link_opener_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

using Meshes = std::vector<std::unique_ptr<Mesh>>;

Deadline soon() { return Deadline::after(20s); }

SharedRanks connect_when_needed(int ranks, int connections = 1) {
  return connect_ranks_of_test(ranks, connections, Checksums::on, kWhenNeeded);
}

std::vector<int> first_ranks(int ranks) {
  std::vector<int> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
  return all;
}

void send(Mesh& mesh, int to, std::uint32_t value) {
  std::array<std::byte, sizeof value> bytes;
  std::memcpy(bytes.data(), &value, sizeof value);
  for (std::size_t sent = 0; sent < bytes.size();) {
    const std::size_t count = mesh.send_some(to, std::span(bytes).subspan(sent));
    sent += count;
    if (count == 0) mesh.wait(std::array{Mesh::Interest{to, false, true}}, soon());
  }
}

std::uint32_t receive(Mesh& mesh, int from) {
  std::array<std::byte, sizeof(std::uint32_t)> bytes;
  for (std::size_t got = 0; got < bytes.size();) {
    const std::size_t count = mesh.recv_some(from, std::span(bytes).subspan(got));
    got += count;
    if (count == 0) mesh.wait(std::array{Mesh::Interest{from, true, false}}, soon());
  }
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

Error error_of_wait(Mesh& mesh, int peer) {
  return error_of([&] { receive(mesh, peer); });
}

// All to all, in a random order.
void exchange_with_all(Mesh& mesh, unsigned seed) {
  std::vector<int> peers = first_ranks(mesh.size());
  std::erase(peers, mesh.rank());
  std::mt19937 random(seed);
  std::ranges::shuffle(peers, random);
  for (const int peer : peers) send(mesh, peer, static_cast<std::uint32_t>(mesh.rank() * 1000 + peer));
  std::ranges::shuffle(peers, random);
  for (const int peer : peers) {
    if (receive(mesh, peer) != static_cast<std::uint32_t>(peer * 1000 + mesh.rank())) {
      throw std::runtime_error("another rank's word");
    }
  }
}

bool is_near(int rank, int peer, int ranks) { return are_neighbours(Neighbours::at_powers_of_two, rank, peer, ranks); }

}  // namespace

TEST_CASE("neighbours are ranks whose distance in the ring is a power of two, for both of them") {
  for (int ranks = 2; ranks < 70; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      int neighbours = 0, in_ring = 0;
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == rank) continue;
        CHECK(is_near(rank, peer, ranks) == is_near(peer, rank, ranks));
        neighbours += is_near(rank, peer, ranks) ? 1 : 0;
        in_ring += are_neighbours(Neighbours::in_ring, rank, peer, ranks) ? 1 : 0;
      }
      CHECK(in_ring == std::min(ranks - 1, 2));
      CHECK(neighbours >= in_ring);
      CHECK((1 << (neighbours / 2)) <= 2 * ranks);
    }
  }
  CHECK(is_near(0, 64, 128));
  CHECK(is_near(127, 0, 128));
  CHECK_FALSE(is_near(0, 3, 128));
}

TEST_CASE("the two large meshes of a group start with 16 connections of a rank at most") {
  const int ranks = kIsSanitized ? 20 : 128;
  std::vector<std::size_t> sockets(static_cast<std::size_t>(ranks));
  for (const Neighbours neighbours : {Neighbours::at_powers_of_two, Neighbours::in_ring}) {
    const SharedRanks links =
        connect_ranks_of_test(ranks, 1, Checksums::on, TcpMeshSettings().complete_up_to, neighbours);
    for (std::size_t rank = 0; rank < sockets.size(); ++rank) sockets[rank] += links[rank]->sockets();
  }
  CHECK(std::ranges::max(sockets) <= 16);
}

TEST_CASE("a large mesh adds the connections that are used") {
  constexpr int ranks = 20;
  const SharedRanks links = connect_ranks_of_test(ranks);
  std::size_t sockets = 0;
  for (const auto& each : links) sockets += each->sockets();
  const auto first = open_group(links, "group", first_ranks(ranks), 3);
  const auto second = open_group(links, "group", first_ranks(ranks), 14);
  send(*first, 14, 5);
  CHECK(receive(*second, 3) == 5);
  send(*second, 3, 6);
  CHECK(receive(*first, 14) == 6);
  std::size_t later = 0;
  for (const auto& each : links) later += each->sockets();
  CHECK(later == sockets + 4);  // one for control and one for data, at both ends
}

TEST_CASE("all ranks connect with all others at once, each pair once") {
  constexpr int kRanks = 12;
  for (unsigned seed = 0; seed < (kIsSanitized ? 5 : 30); ++seed) {
    CAPTURE(seed);
    const int connections = 1 + static_cast<int>(seed % 3);
    const SharedRanks links = connect_when_needed(kRanks, connections);
    const Meshes group = open_group(links, "group", first_ranks(kRanks));
    run_ranks_or_throw(kRanks, [&](int rank) {
      exchange_with_all(*group[static_cast<std::size_t>(rank)], seed * 100 + static_cast<unsigned>(rank));
    });
    for (const auto& each : links) {
      CHECK(each->sockets() == static_cast<std::size_t>(kRanks - 1) * static_cast<std::size_t>(1 + connections));
    }
  }
}

TEST_CASE("a rank that waits for one that left, or ended the group, before they were connected learns it") {
  const SharedRanks links = connect_when_needed(8);
  Meshes left = open_group(links, "left", first_ranks(8));
  left[3].reset();
  CHECK_ERROR(error_of_wait(*left[0], 3), ErrorKind::peer_lost, "rank 3 has left");

  Meshes ended = open_group(links, "ended", {0, 1, 2, 3, 4, 5, 6, 7});
  ended[6]->abort(Error(ErrorKind::aborted, "no more of this"));
  ended[6].reset();
  CHECK_ERROR(error_of_wait(*ended[1], 6), ErrorKind::aborted, "no more of this");

  Meshes said = open_group(links, "said", first_ranks(8));
  said[2]->announce("a call");
  std::array<std::byte, 1> space;
  while (said[5]->recv_some(2, space) == 0 && !said[5]->take_announcement()) {
    said[5]->wait(std::array{Mesh::Interest{2, true, false}}, soon());
  }
}

TEST_CASE("ranks that wait pass announcements on, so that all hear of all but the one that is late") {
  constexpr int kRanks = 24;
  constexpr int kLate = 5;
  const SharedRanks links = connect_ranks_of_test(kRanks);
  const Meshes group = open_group(links, "group", first_ranks(kRanks));
  std::size_t before = 0, after = 0;
  for (const auto& each : links) before += each->sockets();
  std::barrier all(kRanks - 1);
  run_ranks_or_throw(kRanks, [&](int rank) {
    if (rank == kLate) return;
    Mesh& mesh = *group[static_cast<std::size_t>(rank)];
    for (const std::string call : {"first ", "second "}) {
      mesh.announce(call + std::to_string(rank));
      std::vector<bool> heard(kRanks, false);
      for (int count = 0; count < kRanks - 2;) {
        const auto next = mesh.take_announcement();
        if (!next) {
          mesh.wait(std::array{Mesh::Interest{kLate, true, false, false}}, soon());
        } else if (next->bytes == call + std::to_string(next->from) && !heard[static_cast<std::size_t>(next->from)]) {
          heard[static_cast<std::size_t>(next->from)] = true;
          ++count;
        }
      }
      all.arrive_and_wait();
    }
  });
  for (const auto& each : links) after += each->sockets();
  CHECK(after == before);
}

TEST_CASE("a group that both ranks closed before they were connected is forgotten once they are") {
  const SharedRanks links = connect_when_needed(8);
  for (int i = 0; i < 100; ++i) open_group(links, "group " + std::to_string(i), {0, 1, 2, 3, 4, 5, 6, 7});
  const Meshes last = open_group(links, "last", first_ranks(8));
  send(*last[0], 3, 7);
  CHECK(receive(*last[3], 0) == 7);
  send(*last[3], 0, 8);
  CHECK(receive(*last[0], 3) == 8);
  for (const auto& [rank, peer] : {std::pair{0, 3}, std::pair{3, 0}}) {
    while (links[static_cast<std::size_t>(rank)]->groups_with(peer) > 1) {
      last[static_cast<std::size_t>(rank)]->wait({}, soon());
    }
  }
}

TEST_CASE("a rank that is gone before it was needed is lost, with its address") {
  SharedRanks links = connect_when_needed(8);
  Meshes group = open_group(links, "group", first_ranks(8));
  Meshes other = open_group(links, "other", {0, 1, 2});
  group[3].reset();
  links[3].reset();
  const Error error = error_of_wait(*group[0], 3);
  CHECK_ERROR(error, ErrorKind::peer_lost, "rank 3 died or left the group",
              "cannot connect to it at 127.0.0.1:", "Connection refused");
  CHECK(error.detail().peer == 3);
  CHECK_ERROR(error_of_wait(*group[0], 3), ErrorKind::peer_lost, "rank 3");
  const auto later = open_group(links, "later", {0, 3}, 0);
  CHECK_ERROR(error_of_wait(*later, 1), ErrorKind::peer_lost, "rank 1");
  send(*other[0], 1, 9);  // other groups go on
  CHECK(receive(*other[1], 0) == 9);
}

TEST_CASE("a rank whose network is away for longer than a refusal would be waited for is connected once it is back") {
  check_in_network_namespace("ip addr add 10.9.9.1/32 dev lo", [] {
    constexpr int kRanks = 8;
    MemoryStore store;
    const Token token = Token::generate();
    SharedRanks links(kRanks);
    run_ranks_or_throw(kRanks, [&](int rank) {
      TcpMeshSettings settings = tcp_mesh_settings(rank, kRanks, token);
      settings.address = "10.9.9.1";
      settings.complete_up_to = kWhenNeeded;
      links[static_cast<std::size_t>(rank)] = connect_shared_links(settings, store, soon());
    });
    const Meshes group = open_group(links, "group", first_ranks(kRanks));
    if (std::system("ip addr del 10.9.9.1/32 dev lo") != 0) return 2;
    std::jthread sender([&] { send(*group[0], 3, 7); });
    std::this_thread::sleep_for(2500ms);
    if (std::system("ip addr add 10.9.9.1/32 dev lo") != 0) return 3;
    return receive(*group[3], 0) == 7 ? 0 : 4;
  });
}

TEST_CASE("a rank that connects to one that does not answer learns that another one has died") {
  const Listener silent = Listener::bind({"127.0.0.1", 0}, soon());
  MemoryStore store;
  store.set("mesh/test/0", to_string(silent.address().endpoint()), soon());
  TcpMeshSettings settings = tcp_mesh_settings(1, 2, Token::generate());
  int looks = 0;
  settings.check_alive = [&] {
    if (++looks == 2) throw Error(ErrorKind::peer_lost, "rank 5 has ended");
  };
  CHECK_ERROR(error_of([&] { connect_shared_links(settings, store, soon()); }), ErrorKind::peer_lost,
              "rank 5 has ended");
}

TEST_CASE("a rank that leaves while another connects to it has not died") {
  for (int i = 0; i < (kIsSanitized ? 20 : 100); ++i) {
    SharedRanks links = connect_when_needed(8);
    Meshes group = open_group(links, "group", first_ranks(8));
    std::barrier both(2);
    run_ranks_or_throw(2, [&](int thread) {
      both.arrive_and_wait();
      if (thread == 0) {
        const std::string text = error_of_wait(*group[3], 0).what();
        const bool is_named = text.find("rank 0 has left") == 0 || text.find("rank 0 died or left") == 0;
        if (!is_named) throw std::runtime_error(text);
      } else {
        for (int turn = 0; turn < 20 * i; ++turn) group[0]->wait({}, soon());
        group[0].reset();
        links[0].reset();
      }
    });
  }
}

}  // namespace link_opener_test
