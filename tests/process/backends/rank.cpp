// One rank of a job over a backend: what the contract of engines says, with a process for each rank.
// rank <backend> contract|late|abort|die. Rank, size and store come from the environment.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include "lockstep/comm/adapters/backends.h"
#include "lockstep/comm/rendezvous/rendezvous.h"
#include "tests/contract/engine/cases.h"

namespace {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

std::unique_ptr<Engine> connect(const Membership& membership, std::string_view backend) {
  CarrierSite site;
  site.rank = membership.rank;
  site.size = membership.size;
  site.generation = membership.generation;
  site.group = "contract";
  site.address = membership.members[static_cast<std::size_t>(membership.rank)].address;
  for (const Member& member : membership.members) site.members.push_back(to_string(member));
  site.store = membership.store;
  site.buffer_bytes = 100'000;
  return make_backend_engine(backend, site, soon());
}

void check_contract(Engine& engine) {
  const int refused = walk_table(engine, Where::ordinary, Match::value);
  std::mt19937 shared(11), own(static_cast<unsigned>(engine.rank()) + 1000);
  for (int i = 0; i < 150; ++i) {
    const Case c = random_case(shared, engine.size(), i);
    if (engine.supports(c.kind, c.reduce, c.dtype)) run_case(engine, c, own, Where::ordinary, Match::value);
  }
  std::cout << "refused " << refused << "\n";
  float number = 1;
  const std::uint64_t count = engine.rank() == 1 ? 0 : 1;
  const Segment segment{reinterpret_cast<std::byte*>(&number), count * 4};
  engine.run({.kind = OpKind::all_reduce, .dtype = DType::f32, .count = count, .output = {&segment, 1}}, soon());
}

void report(const Error& error) {
  std::cout << "error " << to_string(error.kind()) << " " << error.what() << std::endl;
}

// Rank 0 has the store, in which the others still look: it goes last.
void leave(const Membership& membership) {
  const auto key_of = [](int rank) { return "given up by " + std::to_string(rank); };
  membership.store->set(key_of(membership.rank), "1", soon());
  if (membership.rank != 0) return;
  std::vector<std::string> keys;
  for (int rank = 0; rank < membership.size; ++rank) keys.push_back(key_of(rank));
  membership.store->wait(keys, Deadline::after(5s));
}

void run(const std::string& backend, const std::string& scenario) {
  JoinOptions options;
  options.timeout = std::chrono::seconds(30);
  const Membership membership = join(options, [](const char* name) -> const char* { return std::getenv(name); });
  const auto engine = connect(membership, backend);
  engine->run({}, soon());
  if (scenario == "contract") return check_contract(*engine);
  const bool is_last = membership.rank == membership.size - 1;
  if (scenario == "abort" && is_last) engine->abort("loss is NaN");
  if (scenario == "die" && is_last) ::kill(::getpid(), SIGKILL);
  // A rank that is late comes when the others have given up.
  if (scenario == "late" && is_last) membership.store->get("given up by 0", soon());
  try {
    engine->run({}, scenario == "late" && !is_last ? Deadline::after(300ms) : soon());
  } catch (const Error& error) {
    report(error);  // first: a launcher may end the job when a rank leaves
    leave(membership);
    std::_Exit(3);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    run(argv[1], argv[2]);
    std::cout << "done" << std::endl;
    return 0;
  } catch (const Error& error) {
    report(error);
  } catch (const std::exception& error) {
    std::cout << "raised " << error.what() << std::endl;
  }
  return 3;
}
