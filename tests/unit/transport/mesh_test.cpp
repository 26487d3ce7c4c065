// What every Mesh does, over TCP and shared memory.
#include "lockstep/comm/transport/mesh.h"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/support/arena_meshes.h"
#include "tests/support/expect_error.h"
#include "tests/support/rank_threads.h"
#include "tests/support/shared_meshes.h"

namespace mesh_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

using Meshes = std::vector<std::unique_ptr<Mesh>>;

// Over connections that are made when needed; here, before the test begins.
Meshes connected(Meshes meshes) {
  run_ranks_or_throw(static_cast<int>(meshes.size()), [&](int rank) {
    Mesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    std::array<std::byte, 1> byte{};
    for (int peer = 0; peer < mesh.size(); ++peer) {
      while (peer != rank && mesh.send_some(peer, byte) == 0) {
        mesh.wait(std::array{Mesh::Interest{peer, false, true}}, Deadline::after(20s));
      }
    }
    for (int peer = 0; peer < mesh.size(); ++peer) {
      while (peer != rank && mesh.recv_some(peer, byte) == 0) {
        mesh.wait(std::array{Mesh::Interest{peer, true, false}}, Deadline::after(20s));
      }
    }
  });
  return meshes;
}

struct Kind {
  const char* name;
  Meshes (*make)(int size);
};
const Kind kKinds[] = {
    {"shared memory in small rings", [](int size) { return make_arena_meshes(size, 512); }},
    {"tcp", [](int size) { return make_tcp_meshes(size); }},
    {"tcp without checksums", [](int size) { return make_tcp_meshes(size, 2, 0, Checksums::off); }},
    {"tcp over three connections", [](int size) { return make_tcp_meshes(size, 3); }},
    {"tcp, connected when needed",
     [](int size) { return connected(make_tcp_meshes(size, 2, 0, Checksums::on, kWhenNeeded)); }},
    {"tcp and shared memory, connected when needed",
     [](int size) { return connected(make_tcp_meshes(size, 1, 2, Checksums::on, kWhenNeeded)); }},
    {"tcp, part of a larger group", [](int size) { return make_part_meshes(size); }},
    {"tcp and shared memory", [](int size) { return make_tcp_meshes(size, 2, 2); }},
    {"shared memory", [](int size) { return make_arena_meshes(size); }},
};

Deadline soon() { return Deadline::after(20s); }
ByteSpan bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string receive(Mesh& mesh, int peer, std::size_t count) {
  std::string text(count, '\0');
  for (std::size_t got = 0; got < count;) {
    const std::size_t bytes = mesh.recv_some(peer, std::as_writable_bytes(std::span(text)).subspan(got));
    got += bytes;
    if (bytes == 0) mesh.wait(std::array{Mesh::Interest{peer, true, false}}, soon());
  }
  return text;
}

double elapsed_since(TimePoint start) { return seconds(steady_clock().now() - start); }

}  // namespace

TEST_CASE("streams keep their order between all pairs, in both directions at once") {
  for (const Kind& kind : kKinds) {
    CAPTURE(std::string(kind.name));
    constexpr int kSize = 3;
    constexpr std::size_t kBytes = 300'000;
    Meshes meshes = kind.make(kSize);
    run_ranks_or_throw(kSize, [&](int rank) {
      Mesh& mesh = *meshes[static_cast<std::size_t>(rank)];
      if (mesh.rank() != rank || mesh.size() != kSize) throw std::runtime_error("wrong rank or size");
      std::array<std::string, kSize> sent, received;
      for (int peer = 0; peer < kSize; ++peer) {
        for (std::size_t i = 0; i < kBytes; ++i) {
          sent[static_cast<std::size_t>(peer)].push_back(
              static_cast<char>((i * 7 + i / 251) + static_cast<std::size_t>(rank * 16 + peer)));
        }
      }
      std::array<std::size_t, kSize> sent_count{};
      for (;;) {
        std::vector<Mesh::Interest> interests;
        bool moved = false;
        for (int peer = 0; peer < kSize; ++peer) {
          const auto p = static_cast<std::size_t>(peer);
          if (peer == rank) continue;
          const std::size_t out = mesh.send_some(peer, bytes_of(sent[p]).subspan(sent_count[p]));
          sent_count[p] += out;
          std::array<std::byte, 997> buffer;
          const std::size_t in =
              mesh.recv_some(peer, std::span(buffer).first(std::min(buffer.size(), kBytes - received[p].size())));
          received[p].append(reinterpret_cast<const char*>(buffer.data()), in);
          moved |= out + in != 0;
          const Mesh::Interest interest{peer, received[p].size() < kBytes, sent_count[p] < kBytes};
          if (interest.readable || interest.writable) interests.push_back(interest);
        }
        if (interests.empty()) break;
        if (!moved) mesh.wait(interests, soon());
      }
      for (int peer = 0; peer < kSize; ++peer) {
        std::string expected;
        for (std::size_t i = 0; i < kBytes && peer != rank; ++i) {
          expected.push_back(static_cast<char>((i * 7 + i / 251) + static_cast<std::size_t>(peer * 16 + rank)));
        }
        if (received[static_cast<std::size_t>(peer)] != expected) throw std::runtime_error("wrong bytes");
      }
    });
  }
}

TEST_CASE("wait ends at its deadline, and at once without interests") {
  for (const Kind& kind : kKinds) {
    CAPTURE(std::string(kind.name));
    Meshes meshes = kind.make(2);
    meshes[0]->wait({}, soon());
    const TimePoint start = steady_clock().now();
    const std::array interest{Mesh::Interest{1, true, false}};
    std::array<std::byte, 4> buffer;
    REQUIRE(meshes[0]->recv_some(1, buffer) == 0);
    CHECK_ERROR(error_of([&] { meshes[0]->wait(interest, Deadline::after(60ms)); }), ErrorKind::timeout);
    CHECK(elapsed_since(start) >= 0.06);
    CHECK(elapsed_since(start) < 10);
  }
}

TEST_CASE("wake ends the present wait of its own rank only, or the next one") {
  for (const Kind& kind : kKinds) {
    CAPTURE(std::string(kind.name));
    Meshes meshes = kind.make(2);
    const std::array to_0{Mesh::Interest{0, true, false}}, to_1{Mesh::Interest{1, true, false}};
    std::array<std::byte, 4> buffer;
    REQUIRE(meshes[0]->recv_some(1, buffer) == 0);
    REQUIRE(meshes[1]->recv_some(0, buffer) == 0);
    meshes[0]->wake();
    meshes[0]->wake();
    meshes[0]->wait(to_1, soon());
    CHECK_ERROR(error_of([&] { meshes[0]->wait(to_1, Deadline::after(10ms)); }), ErrorKind::timeout);
    for (int round = 0; round < 20; ++round) {
      std::jthread waker([&] {
        if (round % 2 == 1) std::this_thread::sleep_for(2ms);  // also into a deep sleep
        meshes[0]->wake();
      });
      meshes[0]->wait(to_1, soon());
    }
    CHECK_ERROR(error_of([&] { meshes[1]->wait(to_0, Deadline::after(10ms)); }), ErrorKind::timeout);
  }
}

TEST_CASE("a full stream makes the sender wait until the receiver has made room") {
  for (const Kind& kind : kKinds) {
    CAPTURE(std::string(kind.name));
    Meshes meshes = kind.make(2);
    const std::string block(1 << 20, 'x');
    std::size_t sent = 0;
    while (const std::size_t bytes = meshes[0]->send_some(1, bytes_of(block))) sent += bytes;
    const std::array interest{Mesh::Interest{1, false, true}};
    CHECK_ERROR(error_of([&] { meshes[0]->wait(interest, Deadline::after(10ms)); }), ErrorKind::timeout);
    std::jthread reader([&] { CHECK(receive(*meshes[1], 0, sent) == std::string(sent, 'x')); });
    meshes[0]->wait(interest, soon());
    CHECK(meshes[0]->send_some(1, bytes_of(block)) > 0);
  }
}

TEST_CASE("abort reaches every rank at once, wherever it waits, and the first reason stays") {
  for (const Kind& kind : kKinds) {
    CAPTURE(std::string(kind.name));
    Meshes meshes = kind.make(4);
    std::atomic<int> waiting{0};
    std::atomic<TimePoint> start{TimePoint()};
    std::jthread other([&] {
      while (waiting < 4) std::this_thread::yield();
      start = steady_clock().now();
      meshes[1]->abort(Error(ErrorKind::aborted, "rank 1 ended the group: loss is NaN"));
      meshes[1]->abort(Error(ErrorKind::aborted, "second thoughts"));
    });
    const auto errors = run_ranks(4, [&](int rank) {
      Mesh& mesh = *meshes[static_cast<std::size_t>(rank)];
      const std::array interest{Mesh::Interest{(rank + 1) % 4, true, false}};
      ++waiting;
      const Error error = error_of([&] {
        std::array<std::byte, 4> buffer;
        for (;;) {
          mesh.recv_some(interest[0].peer, buffer);
          mesh.wait(interest, soon());
        }
      });
      CHECK(elapsed_since(start.load()) < 5);  // whom nothing reaches waits for 20 s
      CHECK_ERROR(error_of([&] { mesh.wait({}, soon()); }), ErrorKind::aborted, "loss is NaN");
      CHECK_ERROR(error_of([&] { mesh.send_some(interest[0].peer, bytes_of("x")); }), ErrorKind::aborted,
                  "loss is NaN");
      throw error;
    });
    for (const auto& error : errors) {
      CHECK_ERROR(error_of([&] { std::rethrow_exception(error); }), ErrorKind::aborted,
                  "rank 1 ended the group: loss is NaN");
    }
  }
}

TEST_CASE("an announcement reaches all peers beside their streams, and wakes those who wait") {
  for (const Kind& kind : kKinds) {
    CAPTURE(std::string(kind.name));
    Meshes meshes = kind.make(3);
    CHECK_FALSE(meshes[0]->take_announcement());
    std::atomic<int> waiting{0};
    run_ranks_or_throw(3, [&](int rank) {
      Mesh& mesh = *meshes[static_cast<std::size_t>(rank)];
      if (rank == 2) {
        mesh.send_some(0, bytes_of("unread"));
        while (waiting < 2) std::this_thread::yield();
        return mesh.announce("barrier #7");
      }
      const std::array interest{Mesh::Interest{1 - rank, true, false}};
      ++waiting;
      std::array<std::byte, 4> buffer;
      std::optional<Announcement> heard;
      while (!heard) {
        mesh.recv_some(1 - rank, buffer);  // nothing: then it waits for some
        mesh.wait(interest, soon());
        heard = mesh.take_announcement();
      }
      if (heard->from != 2 || heard->bytes != "barrier #7") throw std::runtime_error(heard->bytes);
      if (mesh.take_announcement()) throw std::runtime_error("it is there twice");
    });
  }
}

TEST_CASE("the last of several announcements is found later, after its rank has left or has ended the group") {
  const std::string longest(kMaxAnnouncementBytes, 'x');
  for (const Kind& kind : kKinds) {
    CAPTURE(std::string(kind.name));
    Meshes meshes = kind.make(3);
    meshes[1]->announce("first");
    meshes[1]->announce(longest);
    meshes[2]->announce("second");
    meshes[2]->abort(Error(ErrorKind::aborted, "rank 2 ended the group"));
    meshes[1].reset();
    const Error error = error_of([&] {
      for (;;) meshes[0]->wait({}, soon());
    });
    CHECK_ERROR(error, ErrorKind::aborted, "rank 2 ended the group");
    std::array<Bytes, 3> heard;
    while (const auto next = meshes[0]->take_announcement()) heard[static_cast<std::size_t>(next->from)] += next->bytes;
    CHECK(heard == std::array<Bytes, 3>{"", longest, "second"});
  }
}

TEST_CASE("a rank that leaves disturbs only who still needs it, and what it sent before still arrives") {
  for (const Kind& kind : kKinds) {
    CAPTURE(std::string(kind.name));
    Meshes meshes = kind.make(3);
    REQUIRE(meshes[2]->send_some(0, bytes_of("last words")) == 10);
    meshes[2].reset();
    REQUIRE(meshes[1]->send_some(0, bytes_of("still here")) == 10);
    CHECK(receive(*meshes[0], 1, 10) == "still here");
    const std::array interest{Mesh::Interest{1, true, false}};
    std::array<std::byte, 4> buffer;
    REQUIRE(meshes[0]->recv_some(1, buffer) == 0);
    CHECK_ERROR(error_of([&] { meshes[0]->wait(interest, Deadline::after(50ms)); }), ErrorKind::timeout);
    CHECK(receive(*meshes[0], 2, 10) == "last words");
    const Error error = error_of([&] { receive(*meshes[0], 2, 1); });
    CHECK_ERROR(error, ErrorKind::peer_lost, "rank 2", "has left");
    CHECK(error.detail().peer == 2);
  }
}

}  // namespace mesh_test
