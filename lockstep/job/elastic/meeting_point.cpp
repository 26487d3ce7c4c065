#include "lockstep/job/elastic/meeting_point.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <memory>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::uint16_t kDefaultPort = 29400;

// Nothing for a name.
std::optional<SocketAddress> numeric_address(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  return SocketAddress(list->ai_addr, list->ai_addrlen);
}

in_addr_t bits(const sockaddr* address) {
  return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
}

// The interface of this host in whose network it is the broadcast address; empty if there is none.
std::string interface_of_broadcast(const SocketAddress& address) {
  ifaddrs* list = nullptr;
  if (address.family() != AF_INET || ::getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const bool is_v4 = entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET;
    if (!is_v4 || entry->ifa_netmask == nullptr || (entry->ifa_flags & IFF_BROADCAST) == 0) continue;
    const in_addr_t host_bits = ~bits(entry->ifa_netmask);
    if (host_bits > 1 && bits(address.data()) == (bits(entry->ifa_addr) | host_bits)) return entry->ifa_name;
  }
  return "";
}

std::string why_not(const Endpoint& endpoint, int most_hosts) {
  if (endpoint.port == 0 && most_hosts > 1) {
    return "port 0 means any free port, which the other hosts do not know; choose one, such as 29400";
  }
  const auto address = numeric_address(endpoint.host);
  if (!address) return "";
  constexpr const char* kRemedy = "give the first host's name, or an address of it that the others can reach";
  if (const auto why = address->why_of_no_host(); !why.empty()) {
    return fmt::format("no host has the address {}, which {}; {}", address->host(), why, kRemedy);
  }
  if (const std::string name = interface_of_broadcast(*address); !name.empty()) {
    return fmt::format("no host has the address {}, which is the broadcast address of the interface {}; {}",
                       address->host(), name, kRemedy);
  }
  if (address->is_link_local() && !address->has_scope()) {
    return fmt::format(
        "{} is a link-local address, which needs the name of an interface of this host: [{}%eth0]:{}; or use another "
        "address of the first host",
        address->host(), address->host(), endpoint.port);
  }
  return "";
}

Endpoint parse(const std::string& text) {
  if (text.ends_with(']') || text.find(':') == std::string::npos) {
    return parse_endpoint(fmt::format("{}:{}", text, kDefaultPort));
  }
  return parse_endpoint(text);
}

}  // namespace

Endpoint parse_meeting_point(const std::string& text, int most_hosts) {
  Endpoint endpoint = parse(text);
  const std::string why = why_not(endpoint, most_hosts);
  if (why.empty()) return endpoint;
  throw Error(ErrorKind::invalid_argument, fmt::format("hosts cannot meet at '{}' (--rdzv-endpoint): {}", text, why));
}

}  // namespace lockstep::internal
