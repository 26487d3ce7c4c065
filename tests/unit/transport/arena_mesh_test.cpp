// What is special about meshes over shared memory: their memory, and ranks that are processes of their own.
#include "lockstep/comm/transport/arena_mesh.h"
#include "lockstep/comm/transport/byte_rings.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/transport/arena.h"
#include "tests/support/arena_meshes.h"
#include "tests/support/expect_error.h"
#include "tests/support/rank_threads.h"

namespace arena_mesh_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

using Buffer = std::vector<std::byte>;

Deadline soon() { return Deadline::after(20s); }

void send_all(Mesh& mesh, int peer, ByteSpan data) {
  while (!data.empty()) {
    const std::size_t bytes = mesh.send_some(peer, data);
    data = data.subspan(bytes);
    if (bytes == 0) mesh.wait(std::array{Mesh::Interest{peer, false, true}}, soon());
  }
}

void receive_all(Mesh& mesh, int peer, MutableByteSpan data) {
  while (!data.empty()) {
    const std::size_t bytes = mesh.recv_some(peer, data);
    data = data.subspan(bytes);
    if (bytes == 0) mesh.wait(std::array{Mesh::Interest{peer, true, false}}, soon());
  }
}

std::vector<LocalPeer> watch_peer(int peer, pid_t pid) {
  auto peers = name_peers(2);
  peers[static_cast<std::size_t>(peer)].process = ProcessWatch(pid);
  return peers;
}

// Rank 1 of 2, a process of its own. It is killed at the end, if it has not ended.
class ChildRank {
 public:
  ChildRank(const ByteRings& rings, const std::function<void(Mesh&)>& body) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    int status = 1;
    try {
      auto mesh = make_arena_mesh(rings, 1, watch_peer(0, ::getppid()));
      body(*mesh);
      status = 0;
    } catch (const std::exception&) {  // the parent sees the status
    }
    ::_exit(status);
  }
  ~ChildRank() {
    kill();
    if (!waited_) ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  void kill() const {
    if (!waited_) ::kill(pid_, SIGKILL);
  }
  int exit_code() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    waited_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  bool waited_ = false;
};

}  // namespace

TEST_CASE("the rings of many ranks take half a gibibyte of addresses at most") {
  CHECK(ByteRings::region_bytes(1) <= 12288);
  CHECK(ByteRings::region_bytes(2) >= 2 * arena::kRingBytes);
  CHECK(ByteRings::region_bytes(64) < (std::size_t{513} << 20));
  CHECK(ByteRings::region_bytes(64) > 64 * 63 * arena::kRingBytes);
}

TEST_CASE("a mesh of one needs nobody") {
  const auto alone = make_arena_meshes(1);
  alone[0]->wait({}, soon());
  alone[0]->abort(Error(ErrorKind::aborted, "enough"));
  CHECK_ERROR(error_of([&] { alone[0]->wait({}, soon()); }), ErrorKind::aborted, "enough");
}

// fault: S8
TEST_CASE("a stream whose words are damaged is refused") {
  const ByteRings rings = make_rings(2);
  const auto mesh = make_arena_mesh(rings, 0, name_peers(2));
  std::array<std::byte, 4> four{};
  rings.ring(1, 0).control->sent = arena::kRingBytes + 1;
  CHECK_ERROR(error_of([&] { mesh->recv_some(1, four); }), ErrorKind::corrupt_data, "ring", "rank 1", "damaged");
  rings.ring(0, 1).control->received = 5;  // though nothing was sent
  CHECK_ERROR(error_of([&] { mesh->send_some(1, four); }), ErrorKind::corrupt_data, "damaged");
}

TEST_CASE("an arena has rings for a mesh, which outlives it and disturbs nothing else in it") {
  auto arenas = make_local_arenas(3, {.segment_bytes = std::size_t{8} << 20});
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (const auto& arena : arenas) {
    const ByteRing last = arena->rings().ring(2, 1);
    CHECK(last.memory + last.capacity <= arena->segment(0));
    meshes.push_back(make_arena_mesh(*arena));
  }
  std::memset(arenas[0]->segment(0), 0x77, 4096);
  run_ranks_or_throw(3, [&](int rank) {
    Mesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    const Buffer sent(300'000, static_cast<std::byte>(rank + 1));
    Buffer received(sent.size());
    // Twice the ring's size, so the next rank has to read meanwhile; rank 0 reads first.
    if (rank != 0) send_all(mesh, (rank + 1) % 3, sent);
    receive_all(mesh, (rank + 2) % 3, received);
    if (rank == 0) send_all(mesh, 1, sent);
    if (received != Buffer(sent.size(), static_cast<std::byte>((rank + 2) % 3 + 1))) {
      throw std::runtime_error("wrong bytes");
    }
  });
  CHECK(arenas[0]->segment(0)[4095] == std::byte{0x77});
  for (const auto& arena : arenas) arena->check_abort();
  meshes[2]->abort(Error(ErrorKind::aborted, "enough"));
  CHECK_ERROR(error_of([&] { meshes[0]->wait({}, soon()); }), ErrorKind::aborted, "enough");
  arenas.clear();
  CHECK_ERROR(error_of([&] { meshes[1]->wait({}, soon()); }), ErrorKind::aborted, "enough");
}

TEST_CASE("an abort of messages ends collectives of all ranks, and an abort of collectives their messages") {
  for (const bool of_messages : {true, false}) {
    CAPTURE(of_messages);
    const auto arenas = make_local_arenas(2, {.segment_bytes = std::size_t{8} << 20});
    const auto first = make_arena_mesh(*arenas[0]), second = make_arena_mesh(*arenas[1]);
    const Error reason(ErrorKind::aborted, "enough");
    std::atomic<int> waiting{0};
    const auto errors = run_ranks(3, [&](int thread) {
      if (thread == 2) {
        while (waiting != 2) std::this_thread::yield();
        const arena::RankBells& bells = arenas[1]->rings().control().bells(1);
        while (bells.messages.sleeping != 1 || bells.collectives.sleeping != 1) std::this_thread::yield();
        return of_messages ? first->abort(reason) : arenas[0]->abort(reason);
      }
      ++waiting;
      if (thread == 0) second->wait(std::array{Mesh::Interest{0, true, false}}, soon());
      const auto explain = [](const WaitFailure&) { return Error(ErrorKind::timeout, "nobody came"); };
      arenas[1]->await([] { return false; }, [](int) { return false; }, explain, soon());
    });
    CHECK_ERROR(error_of([&] { std::rethrow_exception(errors[0]); }), ErrorKind::aborted, "enough");
    CHECK_ERROR(error_of([&] { std::rethrow_exception(errors[1]); }), ErrorKind::aborted, "enough");
  }
}

TEST_CASE("processes exchange bytes both ways, and one that is killed is named at once") {
  const ByteRings rings = make_rings(2);
  constexpr std::size_t kBytes = 1'000'003;
  ChildRank child(rings, [](Mesh& mesh) {
    Buffer echo(kBytes);
    receive_all(mesh, 0, echo);
    send_all(mesh, 0, echo);
    send_all(mesh, 0, std::as_bytes(std::span("last words", 10)));
    for (;;) ::pause();
  });
  const auto mesh = make_arena_mesh(rings, 0, watch_peer(1, child.pid()));
  Buffer sent(kBytes), received(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) sent[i] = static_cast<std::byte>(i * 7 + i / 251);
  send_all(*mesh, 1, sent);
  receive_all(*mesh, 1, received);
  CHECK(received == sent);
  std::array<std::byte, 1> first{};
  receive_all(*mesh, 1, first);
  CHECK_ERROR(error_of([&] {
                mesh->wait(std::array{Mesh::Interest{1, true, false}}, soon());
                std::array<std::byte, 9> rest{};
                receive_all(*mesh, 1, rest);
                mesh->wait(std::array{Mesh::Interest{1, true, false}}, Deadline::after(60ms));
              }),
              ErrorKind::timeout);
  const TimePoint start = steady_clock().now();
  child.kill();
  const Error error = error_of([&] { mesh->wait(std::array{Mesh::Interest{1, true, false}}, soon()); });
  CHECK_ERROR(error, ErrorKind::peer_lost, "rank 1 was lost: its process ended");
  CHECK(error.detail().peer == 1);
  CHECK(seconds(steady_clock().now() - start) < 5);  // whom nothing reaches waits for 20 s
  // Reported once; from now on only those who need it hear of it.
  mesh->wait({}, soon());
  CHECK_ERROR(error_of([&] { mesh->recv_some(1, first); }), ErrorKind::peer_lost, "rank 1");
  CHECK_ERROR(error_of([&] { mesh->send_some(1, first); }), ErrorKind::peer_lost, "rank 1");
}

TEST_CASE("a process that says goodbye is not lost, and an abort crosses processes") {
  const ByteRings rings = make_rings(2);
  ChildRank child(rings, [](Mesh& mesh) {
    send_all(mesh, 0, std::as_bytes(std::span("x", 1)));
    const Error error = error_of([&] { mesh.wait(std::array{Mesh::Interest{0, true, false}}, soon()); });
    if (error.kind() != ErrorKind::timeout || error.detail().peer != 1) throw error;
  });
  {
    const auto mesh = make_arena_mesh(rings, 0, watch_peer(1, child.pid()));
    std::array<std::byte, 1> byte{};
    receive_all(*mesh, 1, byte);
    mesh->abort(Error(ErrorKind::timeout, "rank 1 has not come", {.rank = 0, .peer = 1}));
    CHECK(child.exit_code() == 0);
  }
  const ByteRings other_rings = make_rings(2);
  ChildRank polite(other_rings, [](Mesh& mesh) { send_all(mesh, 0, std::as_bytes(std::span("bye", 3))); });
  const auto mesh = make_arena_mesh(other_rings, 0, watch_peer(1, polite.pid()));
  CHECK(polite.exit_code() == 0);
  mesh->wait({}, soon());
  std::array<std::byte, 3> bye{};
  receive_all(*mesh, 1, bye);
  CHECK_ERROR(error_of([&] { receive_all(*mesh, 1, bye); }), ErrorKind::peer_lost, "rank 1 has left the group");
}

TEST_CASE("a program that puts other descriptors in place of a mesh's loses nobody by it") {
  const ByteRings rings = make_rings(2);
  ChildRank child(rings, [](Mesh& mesh) {
    std::array<std::byte, 1> byte{};
    receive_all(mesh, 0, byte);
  });
  auto peers = watch_peer(1, child.pid());
  const int watched = peers[1].process.fd();
  const auto mesh = make_arena_mesh(rings, 0, std::move(peers));
  REQUIRE(watched >= 0);
  {
    const UniqueFd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));  // readable, as the pidfd of a dead process
    REQUIRE(::dup3(zero.get(), watched, O_CLOEXEC) == watched);
  }
  CHECK_NOTHROW(mesh->wait({}, soon()));
  child.kill();
  child.exit_code();
  CHECK_ERROR(error_of([&] { mesh->wait({}, soon()); }), ErrorKind::peer_lost, "rank 1 was lost");
}

}  // namespace arena_mesh_test
