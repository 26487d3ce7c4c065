#include "lockstep/comm/net/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <charconv>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/base/wait_until.h"

namespace lockstep {

using namespace internal;

namespace {

struct Answer {
  int error = 0;
  int saved_errno = 0;
  std::vector<SocketAddress> addresses;
};

Answer ask_resolver(const Endpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  Answer answer;
  answer.error = ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &list);
  answer.saved_errno = errno;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    answer.addresses.emplace_back(entry->ai_addr, entry->ai_addrlen);
  }
  return answer;
}

// getaddrinfo() knows no deadline, so it runs in a thread of its own that nobody has to wait for.
Answer ask_resolver_until(const Endpoint& endpoint, Deadline deadline) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable ready;
    bool done = false;
    Answer answer;
  };
  auto shared = std::make_shared<Shared>();
  const auto ask = [shared, endpoint] {
    Answer answer = ask_resolver(endpoint, 0);
    const std::lock_guard lock(shared->mutex);
    shared->answer = std::move(answer);
    shared->done = true;
    shared->ready.notify_one();
  };
  {
    const SignalBlock block = SignalBlock::of_new_thread();
    std::thread(ask).detach();
  }
  std::unique_lock lock(shared->mutex);
  if (!wait_until(shared->ready, lock, deadline, [&] { return shared->done; })) {
    throw Error(
        ErrorKind::timeout,
        fmt::format("looking up the host name '{}' took too long; check the name server, or use a numeric address",
                    endpoint.host));
  }
  return std::move(shared->answer);
}

}  // namespace

std::uint16_t parse_port(std::string_view text, std::string_view what) {
  std::uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, port);
  if (result.ec != std::errc() || result.ptr != end) {
    throw Error(ErrorKind::invalid_argument, fmt::format("{} is '{}', not a port number from 0 to 65535", what, text));
  }
  return port;
}

Endpoint parse_endpoint(std::string_view text) {
  const auto fail = [&](std::string_view why) {
    return Error(ErrorKind::invalid_argument,
                 fmt::format("'{}' is not an address: {} (expected host:port or [IPv6]:port)", text, why));
  };
  std::string_view host;
  std::string_view rest;
  if (!text.empty() && text.front() == '[') {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) throw fail("the ']' is missing");
    host = text.substr(1, close - 1);
    rest = text.substr(close + 1);
  } else {
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) throw fail("the port is missing");
    if (text.find(':', colon + 1) != std::string_view::npos) throw fail("an IPv6 address must be in brackets");
    host = text.substr(0, colon);
    rest = text.substr(colon);
  }
  if (host.empty()) throw fail("the host is empty");
  if (rest.empty() || rest.front() != ':') throw fail("the port is missing");
  return {std::string(host), parse_port(rest.substr(1), fmt::format("the port of '{}'", text))};
}

std::string to_string(const Endpoint& endpoint) {
  const bool is_ipv6 = endpoint.host.find(':') != std::string::npos;
  return is_ipv6 ? fmt::format("[{}]:{}", endpoint.host, endpoint.port)
                 : fmt::format("{}:{}", endpoint.host, endpoint.port);
}

SocketAddress::SocketAddress(const sockaddr* address, socklen_t length) : length_(length) {
  std::memcpy(&storage_, address, std::min<std::size_t>(length, sizeof storage_));
}

std::uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  return 0;
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = "";
  if (family() == AF_INET || family() == AF_INET6) {
    ::getnameinfo(data(), length_, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  }
  return text;
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24) == 127;
  }
  if (family() != AF_INET6) return false;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&address)) return address.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&address);
}

bool SocketAddress::is_link_local() const {
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
}

bool SocketAddress::has_scope() const {
  return family() == AF_INET6 && reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_scope_id != 0;
}

std::string_view SocketAddress::why_of_no_host() const {
  in_addr_t v4 = 0;
  if (family() == AF_INET) {
    v4 = ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr);
  } else if (family() == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
    if (IN6_IS_ADDR_UNSPECIFIED(&address)) return "means all addresses of a host";
    if (IN6_IS_ADDR_MULTICAST(&address)) return "is a multicast address";
    if (!IN6_IS_ADDR_V4MAPPED(&address)) return "";
    std::memcpy(&v4, &address.s6_addr[12], sizeof v4);
    v4 = ntohl(v4);
  } else {
    return "";
  }
  if (v4 == INADDR_ANY) return "means all addresses of a host";
  if (v4 == INADDR_BROADCAST) return "is the broadcast address";
  return IN_MULTICAST(v4) ? "is a multicast address" : "";
}

Endpoint with_scope_of(const std::string& own, const Endpoint& told) {
  const std::size_t scope = own.find('%');
  const std::string address = told.host.substr(0, told.host.find('%'));
  in6_addr parsed{};
  if (scope == std::string::npos || ::inet_pton(AF_INET6, address.c_str(), &parsed) != 1 ||
      !IN6_IS_ADDR_LINKLOCAL(&parsed)) {
    return told;
  }
  return {address + own.substr(scope), told.port};
}

std::string to_string(const SocketAddress& address) {
  if (address.family() != AF_INET && address.family() != AF_INET6) return "unix socket";
  return to_string(address.endpoint());
}

std::vector<SocketAddress> resolve(const Endpoint& endpoint, Deadline deadline) {
  if (endpoint.host == "localhost") {
    auto addresses = ask_resolver({"127.0.0.1", endpoint.port}, AI_NUMERICHOST).addresses;
    for (auto& address : ask_resolver({"::1", endpoint.port}, AI_NUMERICHOST).addresses) addresses.push_back(address);
    return addresses;
  }
  Answer answer = ask_resolver(endpoint, AI_NUMERICHOST);
  const std::size_t scope = endpoint.host.find('%');
  if (answer.error != 0 && scope != std::string::npos) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("'{}' is not an address on this host; check that '{}' is a network interface of this host",
                            endpoint.host, endpoint.host.substr(scope + 1)));
  }
  if (answer.error != 0) answer = ask_resolver_until(endpoint, deadline);
  if (answer.error == 0 && !answer.addresses.empty()) return std::move(answer.addresses);
  const std::string why =
      answer.error == EAI_SYSTEM ? std::strerror(answer.saved_errno) : std::string(::gai_strerror(answer.error));
  throw Error(
      ErrorKind::invalid_argument,
      fmt::format("the host name '{}' cannot be resolved on this host ({}); check its spelling, /etc/hosts or the "
                  "name server, or use a numeric address",
                  endpoint.host, why));
}

}  // namespace lockstep
