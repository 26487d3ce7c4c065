// What was made before a fork() is an error at once in the child, and the child disturbs nothing of its parent's.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/base/fork_guard.h"
#include "lockstep/comm/collective/arena_engine.h"
#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/store/file_store.h"
#include "lockstep/comm/store/store_server.h"
#include "lockstep/comm/store/tcp_store.h"
#include "lockstep/comm/transport/arena_mesh.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked_child.h"
#include "tests/support/tcp_meshes.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/collective/link_fixture.h"

namespace fork_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

Engines make_arena_engines(int size) {
  Engines engines;
  for (auto& arena : make_local_arenas(size, {.segment_bytes = 8 << 20})) {
    engines.push_back(std::make_unique<ArenaEngine>(std::move(arena)));
  }
  return engines;
}

// Whether the call throws, without any wait, the error that children get.
bool is_refused(const std::function<void()>& call, const std::string& what) {
  const TimePoint start = steady_clock().now();
  try {
    call();
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string processes = "process " + std::to_string(::getppid()) + " and cannot be used in process " +
                                  std::to_string(::getpid()) + ", which was forked from it";
    return error.kind() == ErrorKind::invalid_argument && text.starts_with(what + " was made in ") &&
           contains(text, processes) && steady_clock().now() - start < 10s;
  }
  return false;
}

bool all_reduce_is_refused(Engine& engine) {
  float value = 1;
  const Segment output[] = {{reinterpret_cast<std::byte*>(&value), sizeof value}};
  const Collective collective{.kind = OpKind::all_reduce, .dtype = DType::f32, .count = 1, .output = output};
  return is_refused([&] { engine.run(collective, soon()); }, "a group") && value == 1;
}

}  // namespace

TEST_CASE("a fork guard knows its process, its children and theirs") {
  const ForkGuard fork_guard;
  CHECK(fork_guard.is_here());
  fork_guard.check("a thing");
  CHECK(exit_code_of_child([&] {
          const ForkGuard own;
          const bool grandchild = exit_code_of_child([&] { return !own.is_here() && !fork_guard.is_here(); }) == 0;
          return !fork_guard.is_here() && own.is_here() && grandchild &&
                 is_refused([&] { fork_guard.check("a thing"); }, "a thing");
        }) == 0);
  CHECK(fork_guard.is_here());
}

// fault: 49
TEST_CASE("an engine is refused in a child, which can end it without a word to the peers") {
  for (const bool over_links : {true, false}) {
    Engines engines = over_links ? make_link_engines(make_tcp_meshes(2)) : make_arena_engines(2);
    CAPTURE(engines[0]->name());
    std::mt19937 random(1);
    CHECK(run_row(engines, {.count = 1000}, 1, random) == "");
    CHECK(exit_code_of_child([&] {
            const bool refused = all_reduce_is_refused(*engines[0]) && all_reduce_is_refused(*engines[1]);
            engines[0]->abort("in the child");
            engines.clear();
            return refused;
          }) == 0);
    CHECK(run_row(engines, {.count = 100'000}, 1, random) == "");
  }
}

// fault: 49
TEST_CASE("meshes are ended silently in a child") {
  auto arenas = make_local_arenas(2, {.segment_bytes = 8 << 20});
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (const auto& arena : arenas) meshes.push_back(make_arena_mesh(*arena));
  CHECK(exit_code_of_child([&] {
          meshes[0]->abort(Error(ErrorKind::aborted, "in the child"));
          meshes.clear();
          arenas.clear();
          return true;
        }) == 0);
  CHECK(meshes[0]->send_some(1, as_span(ByteView("hello"))) == 5);
  std::byte buffer[8];
  CHECK(meshes[1]->recv_some(0, buffer) == 5);
}

// fault: 49
TEST_CASE("a store and its server are the parent's: the child is refused, and ends both without harm") {
  const Token token = Token::generate();
  auto server = std::make_unique<StoreServer>(Endpoint{"127.0.0.1", 0}, StoreServerOptions{.token = token});
  const Endpoint endpoint = server->address().endpoint();
  const HandshakeSettings settings{.token = token, .job_id = "", .channel = Channel::store, .mine = {}};
  auto store = std::make_unique<TcpStore>(endpoint, settings);
  CHECK(store->add("n", 1, soon()) == 1);
  CHECK(exit_code_of_child([&] {
          const bool refused = is_refused([&] { store->add("n", 1, soon()); }, "a connection to the store") &&
                               is_refused([&] { store->get("never", soon()); }, "a connection to the store") &&
                               is_refused([&] { store->connect(soon()); }, "a connection to the store");
          TcpStore own(endpoint, settings);  // another client, which the parent's server takes
          const bool works = own.add("n", 1, soon()) == 2;
          store.reset();
          server.reset();
          return refused && works;
        }) == 0);
  CHECK(store->add("n", 1, soon()) == 3);
}

TEST_CASE("a child holds no socket, no memory file and no lock of its parent's job") {
  const Token token = Token::generate();
  TemporaryDirectory directory;
  const FileStore file(directory / "store", "run", soon());
  const StoreServer server({"127.0.0.1", 0}, {.token = token});
  TcpStore store(server.address().endpoint(), {.token = token, .job_id = "", .channel = Channel::store, .mine = {}});
  store.set("k", "v", soon());
  auto meshes = make_tcp_meshes(2);
  const auto arenas = make_local_arenas(2, {.segment_bytes = 8 << 20});
  CHECK(exit_code_of_child([&] {
          for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
            std::error_code gone;
            const std::string target = std::filesystem::read_symlink(entry.path(), gone);
            for (const std::string part : {"socket:", "/memfd:lockstep", "anon_inode:", "/store"}) {
              if (contains(target, part)) return false;
            }
          }
          return true;
        }) == 0);
  CHECK(store.get("k", soon()) == "v");
}

TEST_CASE("the death of a process is seen at once, though a child of it lives") {
  int gate[2];
  REQUIRE(::pipe(gate) == 0);
  auto meshes = make_tcp_meshes(2);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(gate[1]);
    char byte = 0;
    ::_exit(::read(gate[0], &byte, 1) == 0 ? 0 : 1);
  }
  ::close(gate[0]);
  const TimePoint start = steady_clock().now();
  meshes[1].reset();
  std::byte buffer[8];
  CHECK_ERROR(error_of([&] {
                while (meshes[0]->recv_some(1, buffer) == 0) {
                  meshes[0]->wait(std::array{Mesh::Interest{1, true, false}}, Deadline::after(5s));
                }
              }),
              ErrorKind::peer_lost, "rank 1");
  CHECK(steady_clock().now() - start < 4s);
  ::close(gate[1]);
  ::waitpid(child, nullptr, 0);
}

}  // namespace fork_test
