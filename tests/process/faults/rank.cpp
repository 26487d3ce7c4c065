// What faults_test.py kills, stops and starves.
//   faults_rank store                       hosts a job's store; prints where; ends with its input
//   faults_rank rank <rank> <size> <shared_memory|tcp> <host:port of the store> <timeout s>
// The latter joins, all-reduces for ever and checks every sum. It prints "joined", "running" after the first round,
// then what its orders, one a line from standard input, ask for: "count" -> "rounds <n>"; "store" -> what became of a
// set in the store. It ends with "failed <kind> after <s>: <text>"; "wrong sum" would be the end of everything. The
// token comes from LOCKSTEP_TOKEN_FILE.
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/collective/arena_engine.h"
#include "lockstep/comm/collective/link_engine.h"
#include "lockstep/comm/health/join_watch.h"
#include "lockstep/comm/health/watched_store.h"
#include "lockstep/comm/rendezvous/rendezvous.h"
#include "lockstep/comm/store/store_server.h"
#include "lockstep/comm/store/tcp_store.h"
#include "lockstep/comm/transport/shared_arena.h"
#include "lockstep/comm/transport/tcp_mesh.h"

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

std::string describe(const Error& error, TimePoint start) {
  char head[64];
  std::snprintf(head, sizeof head, "failed %s after %.2f: ", std::string(to_string(error.kind())).c_str(),
                seconds(steady_clock().now() - start));
  return head + std::string(error.what());
}

int host_store() {
  const StoreServer server(Endpoint{"127.0.0.1", 0}, {.token = Token::for_this_process(), .job_id = "default"});
  say(to_string(server.address().endpoint()));
  for (char byte = 0; ::read(STDIN_FILENO, &byte, 1) > 0;) {
  }
  return 0;
}

// messages: the mesh that a group has besides that of its collectives.
std::unique_ptr<Engine> make_engine(const Membership& membership, const std::string& transport,
                                    std::unique_ptr<Mesh>& messages, Deadline deadline) {
  WatchedStore store(membership.store, membership.watch);
  if (transport == "tcp") {
    TcpMeshSettings settings{.rank = membership.rank,
                             .size = membership.size,
                             .generation = membership.generation,
                             .job_id = membership.job_id,
                             .token = membership.token,
                             .name = "faults"};
    settings.check_alive = [&] { membership.watch->check(deadline); };
    auto engine = std::make_unique<LinkEngine>(connect_tcp_mesh(settings, store, deadline), 0);
    settings.name = "faults/messages";
    messages = connect_tcp_mesh(settings, store, deadline);
    return engine;
  }
  SharedArenaSpec spec{.name = "faults", .rank = membership.rank, .members = {}, .options = {}};
  for (const Member& member : membership.members)
    spec.members.push_back({to_string(member), member.pid, member.process_start});
  return std::make_unique<ArenaEngine>(make_shared_arena(spec, store, deadline));
}

void check_round(Engine& engine, int round, Duration timeout) {
  const std::size_t count = round % 3 == 0 ? 100 : round % 3 == 1 ? 40'000 : 400'000;
  std::vector<float> data(count);
  for (std::size_t i = 0; i < count; ++i)
    data[i] = static_cast<float>(engine.rank() + static_cast<int>(i % 7) + round % 5);
  const Segment output[] = {{reinterpret_cast<std::byte*>(data.data()), count * sizeof(float)}};
  engine.run({.kind = OpKind::all_reduce, .dtype = DType::f32, .count = count, .output = output},
             Deadline::after(timeout));
  const int n = engine.size();
  for (std::size_t i = 0; i < count; ++i) {
    const int expected = n * (static_cast<int>(i % 7) + round % 5) + n * (n - 1) / 2;
    if (data[i] == static_cast<float>(expected)) continue;
    say("wrong sum");
    std::_Exit(3);
  }
}

void obey_orders(Store& store, int round) {
  pollfd entry{STDIN_FILENO, POLLIN, 0};
  if (::poll(&entry, 1, 0) <= 0) return;
  char buffer[64];
  const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
  const std::string order(buffer, got > 0 ? static_cast<std::size_t>(got) : 0);
  if (order == "count\n") say("rounds " + std::to_string(round));
  if (order != "store\n") return;
  const TimePoint start = steady_clock().now();
  try {
    store.set("k", "v", Deadline::after(5s));
    say("stored");
  } catch (const Error& error) {
    say(describe(error, start));
  }
}

int be_rank(char** arguments) {
  const TimePoint start = steady_clock().now();
  const Duration timeout = std::chrono::milliseconds(static_cast<int>(std::atof(arguments[4]) * 1000));
  try {
    JoinOptions options;
    options.rank = std::atoi(arguments[0]);
    options.world_size = std::atoi(arguments[1]);
    options.timeout = timeout;
    options.token = Token::for_this_process();
    const HandshakeSettings settings{.token = *options.token,
                                     .job_id = "default",
                                     .channel = Channel::store,
                                     .mine = local_identity(*options.rank, *options.world_size, 0)};
    options.store = std::make_shared<TcpStore>(parse_endpoint(arguments[3]), settings);
    const Membership membership = join(options, [](const char*) -> const char* { return nullptr; });
    std::unique_ptr<Mesh> messages;
    const auto engine = make_engine(membership, arguments[2], messages, Deadline::after(timeout));
    finish_joining(membership, Deadline::after(timeout));
    say("joined");
    for (int round = 0;; ++round) {
      check_round(*engine, round, timeout);
      if (round == 2) say("running");
      obey_orders(*membership.store, round);
    }
  } catch (const Error& error) {
    say(describe(error, start));
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && argv[1] == std::string("store")) return host_store();
  return argc == 7 ? be_rank(argv + 2) : 2;
}
