#include "lockstep/job/launch/job_store.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <random>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/net/listener.h"

namespace lockstep::internal {
namespace {

const Duration kListenTimeout = std::chrono::seconds(5);

// Where the ports begin that the kernel gives to connections: such a port may be free now and taken later.
int first_ephemeral_port() {
  int first = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first;
  return first;
}

// Also true where that is not known.
bool is_loopback_up() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return true;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  constexpr unsigned kWanted = IFF_UP | IFF_LOOPBACK;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & kWanted) == kWanted) return true;
  }
  return false;
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

JobStore::JobStore(const std::string& listen, const Token& token, const std::string& job_id, int world_size,
                   int generation)
    : server_({listen, 0}, store_options(token, job_id, world_size, static_cast<std::uint64_t>(generation))),
      host_(listen == "localhost" ? server_.address().host() : listen) {
  if (!server_.address().is_loopback() || is_loopback_up()) return;
  log_warning(fmt::format(
      "the loopback interface of this host is down, and ranks connect to the job's store at {}: they wait until "
      "it is up (ip link set lo up)",
      endpoint()));
}

std::string JobStore::endpoint() const { return to_string(Endpoint{host_, server_.port()}); }

int free_port() {
  constexpr int kFirst = 15000;
  constexpr int kFirstOfOthers = 20000;  // ports derived from the jobs of other launchers; see launchers.h
  constexpr int kTries = 20;
  const int end = std::min(first_ephemeral_port(), kFirstOfOthers);
  std::minstd_rand random(std::random_device{}());
  for (int i = 0; i < kTries && end > kFirst + 1000; ++i) {
    const int port = std::uniform_int_distribution(kFirst, end - 1)(random);
    try {
      const Endpoint endpoint{"localhost", static_cast<std::uint16_t>(port)};
      return Listener::bind(endpoint, Deadline::after(kListenTimeout)).address().port();
    } catch (const Error&) {  // taken
    }
  }
  return Listener::bind({"localhost", 0}, Deadline::after(kListenTimeout)).address().port();
}

}  // namespace lockstep::internal
