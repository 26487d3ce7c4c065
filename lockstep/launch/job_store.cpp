#include "lockstep/launch/job_store.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <random>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/net/listener.h"

namespace lockstep::internal {
namespace {

const Duration kListenTimeout = std::chrono::seconds(5);

// Where the ports begin that the kernel gives to connections: such a port may be free now and taken later.
int first_ephemeral_port() {
  int first = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first;
  return first;
}

StoreServerOptions store_options(const Token& token, const std::string& job_id, int ranks, std::uint64_t generation) {
  StoreServerOptions options;
  options.token = token;
  options.job_id = job_id;
  options.identity = local_identity(-1, ranks, generation);
  options.admission = admit_generation(generation);
  // Two for every rank, and some for processes that the ranks start.
  options.limits.connections = std::max<std::size_t>(options.limits.connections, 2 * static_cast<std::size_t>(ranks));
  return options;
}

}  // namespace

JobStore::JobStore(const std::string& listen, std::string advertised, const Token& token, const std::string& job_id,
                   int world_size, int generation)
    : advertised_(std::move(advertised)),
      server_({listen, 0}, store_options(token, job_id, world_size, static_cast<std::uint64_t>(generation))) {}

std::string JobStore::endpoint() const { return to_string(Endpoint{advertised_, server_.port()}); }

int free_port() {
  constexpr int kFirst = 15000;
  constexpr int kFirstOfOthers = 20000;  // ports derived from the jobs of other launchers; see launchers.h
  constexpr int kTries = 20;
  const int end = std::min(first_ephemeral_port(), kFirstOfOthers);
  std::minstd_rand random(std::random_device{}());
  for (int i = 0; i < kTries && end > kFirst + 1000; ++i) {
    const int port = std::uniform_int_distribution(kFirst, end - 1)(random);
    try {
      const Endpoint endpoint{"127.0.0.1", static_cast<std::uint16_t>(port)};
      return Listener::bind(endpoint, Deadline::after(kListenTimeout)).address().port();
    } catch (const Error&) {  // taken
    }
  }
  return Listener::bind({"127.0.0.1", 0}, Deadline::after(kListenTimeout)).address().port();
}

}  // namespace lockstep::internal
