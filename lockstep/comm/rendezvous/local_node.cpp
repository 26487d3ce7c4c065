#include "lockstep/comm/rendezvous/local_node.h"

#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/machine.h"
#include "lockstep/comm/net/address.h"
#include "lockstep/comm/rendezvous/launchers.h"

namespace lockstep::internal {
namespace {

std::string machine_id() {
  if (std::string id = boot_id(); !id.empty()) return id;
  return host_name();  // without /proc, two containers of one host look like two hosts, which is safe
}

// "pid:[4026531836]"
std::string name_space(const char* kind) {
  char target[64] = "";
  const std::string path = fmt::format("/proc/self/ns/{}", kind);
  const ssize_t length = ::readlink(path.c_str(), target, sizeof target);
  return length > 0 ? std::string(target, static_cast<std::size_t>(length)) : fmt::format("{}:?", kind);
}

}  // namespace

std::string local_node_id(std::string_view label) {
  std::string id = fmt::format("{} {} {} {} {} uid:{}", machine_id(), name_space("pid"), name_space("user"),
                               name_space("ipc"), name_space("net"), ::geteuid());
  if (!label.empty()) id += fmt::format(" label:{}", label);
  return id;
}

std::vector<Interface> network_interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<Interface> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0)
        continue;
      if (entry->ifa_addr->sa_family != family) continue;
      if (std::ranges::find(found, entry->ifa_name, &Interface::name) != found.end()) continue;
      const auto* v6 = family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr) : nullptr;
      if (v6 != nullptr && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
      const std::size_t bytes = v6 != nullptr ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
      found.push_back({entry->ifa_name, SocketAddress(entry->ifa_addr, bytes).host()});
    }
  }
  return found;
}

std::string first_interface_address() {
  const std::vector<Interface> interfaces = network_interfaces();
  return interfaces.empty() ? "127.0.0.1" : interfaces.front().address;
}

namespace {

// The interfaces that LOCKSTEP_IFNAME names, in its order.
std::vector<Interface> named_interfaces(const std::string& names) {
  const std::vector<Interface> all = network_interfaces();
  std::vector<Interface> chosen;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    const auto found = std::ranges::find(all, name, &Interface::name);
    if (found == all.end()) {
      std::vector<std::string> known;
      for (const Interface& each : all) known.push_back(each.name);
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("LOCKSTEP_IFNAME is \"{}\", but this host has no network interface \"{}\" that is up and "
                              "has an address; it has: {}",
                              names, name, known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
    }
    chosen.push_back(*found);
  }
  return chosen;
}

// The number of this process on its host: that of the launcher which LOCKSTEP_LAUNCHER names, else LOCAL_RANK, else the
// nearest launcher's.
std::optional<int> local_rank_of(const EnvironmentReader& reader) {
  const std::string_view wanted = reader.choice("LOCKSTEP_LAUNCHER").value_or("");
  const bool is_named = !wanted.empty() && wanted != "env" && wanted != "none";
  const std::optional<int> own = reader.number<std::uint16_t>("LOCAL_RANK");
  if (wanted == "env" || (own && !is_named)) return own;
  const std::vector<Launch> launches = find_launches(reader);
  if (is_named) {
    const Launch* named = find_launch(wanted, launches);
    return named != nullptr && named->local_rank ? named->local_rank : own;
  }
  const auto found = std::ranges::find_if(launches, [](const Launch& each) { return each.local_rank.has_value(); });
  return found == launches.end() ? std::nullopt : found->local_rank;
}

}  // namespace

std::vector<Interface> interfaces_to_advertise(const std::string& set_address, const std::string& set_names,
                                               const std::string& address) {
  if (!set_address.empty()) return {{"LOCKSTEP_ADDRESS", set_address}};
  if (!set_names.empty()) return named_interfaces(set_names);
  std::vector<Interface> all = network_interfaces();
  const auto preferred = std::ranges::find(all, address, &Interface::address);
  if (preferred == all.end()) return {{"", address}};  // loopback, or an alias that no interface has as its first
  std::rotate(all.begin(), preferred, preferred + 1);
  return all;
}

}  // namespace lockstep::internal

namespace lockstep {

using namespace internal;

int local_device(int rank, int device_count, const Environment& environment) {
  if (device_count < 1) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("rank {} needs a GPU, but libtorch finds none here: its build has no CUDA, "
                            "CUDA_VISIBLE_DEVICES hides all, or the host has none (nvidia-smi -L)",
                            rank));
  }
  if (const auto local_rank = local_rank_of(EnvironmentReader(environment))) return *local_rank % device_count;
  const int device = rank % device_count;
  if (rank >= device_count) {
    log_warning(
        fmt::format("LOCAL_RANK is not set; rank {} uses GPU {} of {} GPUs, which is right only if all hosts have {} "
                    "ranks",
                    rank, device, device_count, device_count));
  }
  return device;
}

}  // namespace lockstep
