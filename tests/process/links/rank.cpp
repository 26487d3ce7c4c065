// One rank of links_test.py: links_rank <rank> <size> <address> <store file> <rounds> [<largest count>]
// All-reduces data of changing size over a TCP mesh, `rounds` times or for ever, and checks every sum. If it is not for
// ever, it also sends a tenth of that to the next rank over another mesh, and checks what comes from the one before.
// Prints "connected", "running" after the first round, then "done", or "failed <kind> <text>". The job token comes from
// LOCKSTEP_TOKEN_FILE; LOCKSTEP_HOST_TIMEOUT counts.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/collective/link_engine.h"
#include "lockstep/comm/messages/messenger.h"
#include "lockstep/comm/store/file_store.h"
#include "lockstep/comm/transport/tcp_mesh.h"

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void check_round(Engine& engine, int round, std::size_t largest) {
  const std::size_t count = round % 2 == 0 ? 100 : largest;
  std::vector<float> data(count);
  for (std::size_t i = 0; i < count; ++i)
    data[i] = static_cast<float>(engine.rank() + static_cast<int>(i % 7) + round % 5);
  const Segment output[] = {{reinterpret_cast<std::byte*>(data.data()), count * sizeof(float)}};
  engine.run({.kind = OpKind::all_reduce, .dtype = DType::f32, .count = count, .output = output}, Deadline::after(20s));
  const int n = engine.size();
  for (std::size_t i = 0; i < count; ++i) {
    const int expected = n * (static_cast<int>(i % 7) + round % 5) + n * (n - 1) / 2;
    if (data[i] != static_cast<float>(expected)) throw Error(ErrorKind::corrupt_data, "wrong sum");
  }
}

void check_messages(Messenger& messenger, int round, std::size_t largest) {
  const std::size_t count = round % 2 == 0 ? 100 : largest;
  const auto value = [&](int rank, std::size_t i) { return static_cast<float>(rank * 31 + static_cast<int>(i % 11)); };
  const int n = messenger.size(), before = (messenger.rank() + n - 1) % n;
  std::vector<float> mine(count), theirs(count);
  for (std::size_t i = 0; i < count; ++i) mine[i] = value(messenger.rank(), i);
  const Deadline deadline = Deadline::after(20s);
  const auto tag = static_cast<std::uint64_t>(round);
  const Request in = messenger.receive(before, tag, std::as_writable_bytes(std::span(theirs)), deadline);
  const Request out = messenger.send((messenger.rank() + 1) % n, tag, std::as_bytes(std::span(mine)), deadline);
  in.wait();
  out.wait();
  for (std::size_t i = 0; i < count; ++i) {
    if (theirs[i] != value(before, i)) throw Error(ErrorKind::corrupt_data, "wrong message");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6 && argc != 7) return 2;
  const int rounds = std::atoi(argv[5]);
  const std::size_t largest = argc == 7 ? std::strtoull(argv[6], nullptr, 10) : 1'000'000;
  try {
    FileStore store(argv[4], "links", Deadline::after(20s));
    TcpMeshSettings settings{.rank = std::atoi(argv[1]),
                             .size = std::atoi(argv[2]),
                             .job_id = "links",
                             .token = Token::for_this_process(),
                             .name = "links",
                             .address = argv[3]};
    settings.host_timeout = EnvironmentReader().duration("LOCKSTEP_HOST_TIMEOUT").value_or(3s);
    LinkEngine engine(connect_tcp_mesh(settings, store, Deadline::after(20s)), 0);
    settings.name = "links/messages";
    Messenger messenger(connect_tcp_mesh(settings, store, Deadline::after(20s)));
    say("connected");
    for (int round = 0; rounds == 0 || round < rounds; ++round) {
      check_round(engine, round, largest);
      if (rounds != 0) check_messages(messenger, round, largest / 10);
      if (round == 1) say("running");
    }
    say("done");
  } catch (const Error& error) {
    say("failed " + std::string(to_string(error.kind())) + " " + error.what());
    return 1;
  }
  return 0;
}
