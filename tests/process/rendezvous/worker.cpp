// One process of a rendezvous test.
//   worker join [URL]   joins, greets every other rank through the store, and ends
//   worker hold [URL]   joins, then stays until its standard input ends
//   worker serve        hosts a store on a free port, prints it, and stays until its standard input ends
// TEST_TIMEOUT_MS bounds joining; after TEST_NOTICE_MS it says, among its output, for whom it waits. An Error is
// printed as "error <kind>: <text>", and the exit status is then 3.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/rendezvous/rendezvous.h"
#include "lockstep/comm/store/store_server.h"

using namespace lockstep;
using namespace lockstep::internal;

namespace {

void print_line(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void wait_for_end_of_input() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

void greet(const Membership& world) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  const auto key = [](const char* what, int rank) { return what + std::to_string(rank); };
  world.store->set(key("hello/", world.rank), std::to_string(::getpid()), deadline);
  for (const Member& member : world.members) {
    if (world.store->get(key("hello/", member.rank), deadline) != std::to_string(member.pid)) std::abort();
  }
  world.store->set(key("bye/", world.rank), "", deadline);
  for (int rank = 0; world.hosted && rank < world.size; ++rank) world.store->get(key("bye/", rank), deadline);
}

int run(const std::string& mode, const std::string& url) {
  if (mode == "serve") {
    const StoreServer server({"127.0.0.1", 0}, {.token = Token::for_this_process(), .job_id = "default"});
    print_line(std::to_string(server.port()));
    wait_for_end_of_input();
    return 0;
  }
  JoinOptions options;
  options.init_method = url;
  const char* timeout = std::getenv("TEST_TIMEOUT_MS");
  options.timeout = std::chrono::milliseconds(timeout == nullptr ? 20000 : std::atoi(timeout));
  if (const char* notice = std::getenv("TEST_NOTICE_MS")) {
    ::dup2(STDOUT_FILENO, STDERR_FILENO);
    options.notice_after = std::chrono::milliseconds(std::atoi(notice));
  }
  const Membership world = join(options, [](const char* name) -> const char* { return std::getenv(name); });
  finish_joining(world, Deadline::after(options.timeout));
  print_line("joined as rank " + std::to_string(world.rank) + " of " + std::to_string(world.size) + ", local rank " +
             std::to_string(world.local_rank) + " of " + std::to_string(world.local_size));
  mode == "hold" ? wait_for_end_of_input() : greet(world);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
  } catch (const Error& error) {
    print_line("error " + std::string(to_string(error.kind())) + ": " + error.what());
    return 3;
  }
}
