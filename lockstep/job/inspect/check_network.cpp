#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/machine.h"
#include "lockstep/comm/net/listener.h"
#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/rendezvous/local_node.h"
#include "lockstep/job/inspect/checks.h"

namespace lockstep::internal {
namespace {

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// Other hosts resolve the name as this one does, often from the same files.
Finding name() {
  const std::string name = host_name();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(name.c_str(), nullptr, &hints, &list);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, [](addrinfo* head) {
    if (head != nullptr) ::freeaddrinfo(head);
  });
  const char* const remedy =
      "on several hosts, give addresses instead of names: --rdzv-endpoint ADDRESS:PORT, --local-addr ADDRESS";
  if (error != 0) {
    return {Verdict::warning, "host name", fmt::format("{} cannot be resolved: {}", name, ::gai_strerror(error)),
            remedy};
  }
  std::array<char, NI_MAXHOST> text{};
  ::getnameinfo(list->ai_addr, list->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  Finding finding{.subject = "host name", .found = fmt::format("{} is {}", name, text.data())};
  if (is_loopback(*list->ai_addr)) {
    finding.verdict = Verdict::warning;
    finding.found += ", which other hosts cannot reach";
    finding.remedy = fmt::format("{}; or fix /etc/hosts", remedy);
  }
  return finding;
}

// From this host to itself over the interface's address: a firewall may forbid even that.
double round_trip_seconds(const std::string& address, Deadline deadline) {
  constexpr int kTrips = 51;
  Listener listener = Listener::bind({address, 0}, deadline);
  const UniqueFd client = connect_tcp({address, listener.address().port()}, ConnectRetry::never, deadline);
  Bytes byte = "x";
  send_all(client.get(), as_span(byte), deadline);  // a listener may accept only once data is there
  wait_ready(listener.fd(), POLLIN, deadline, "a connection of this host to itself");
  const UniqueFd server = listener.accept();
  if (!server) throw Error(ErrorKind::peer_lost, "the connection was closed at once");
  recv_all(server.get(), as_span(byte), deadline);
  std::array<double, kTrips> trips{};
  for (double& trip : trips) {
    const TimePoint start = steady_clock().now();
    send_all(client.get(), as_span(byte), deadline);
    recv_all(server.get(), as_span(byte), deadline);
    send_all(server.get(), as_span(byte), deadline);
    recv_all(client.get(), as_span(byte), deadline);
    trip = seconds(steady_clock().now() - start);
  }
  std::ranges::sort(trips);
  return trips[kTrips / 2];
}

Finding interface(const Interface& each, Deadline deadline) {
  const std::string subject = fmt::format("interface {}", each.name);
  try {
    const double trip = round_trip_seconds(each.address, deadline);
    return {.subject = subject,
            .found = fmt::format("{}, a round trip to itself takes {:.0f} us", each.address, trip * 1e6)};
  } catch (const Error& error) {
    return {Verdict::error, subject, fmt::format("{} does not reach itself: {}", each.address, error.what()),
            fmt::format("check the firewall, or set LOCKSTEP_IFNAME to an interface other than {}", each.name)};
  }
}

Finding ports(const MachineFacts& facts) {
  const std::string range = facts.file("/proc/sys/net/ipv4/ip_local_port_range").value_or("");
  int first = 0;
  int last = 0;
  if (std::sscanf(range.c_str(), "%d %d", &first, &last) != 2) return {.subject = "ports", .found = "not reported"};
  Finding finding{.subject = "ports",
                  .found = fmt::format("the kernel uses {} to {} for outgoing connections", first, last)};
  if (last - first < 4096) {
    finding.verdict = Verdict::warning;
    finding.remedy =
        "each rank may need a port for every other rank; widen the range: sysctl net.ipv4.ip_local_port_range='32768 "
        "60999'";
  }
  return finding;
}

}  // namespace

Findings check_network(const MachineFacts& facts, Deadline deadline) {
  Findings findings{name()};
  for (const Interface& each : network_interfaces()) findings.push_back(interface(each, deadline));
  if (findings.size() == 1) {
    findings.push_back(
        {Verdict::warning, "interfaces", "only loopback is up", "jobs can run on this host only; check 'ip address'"});
  }
  findings.push_back(ports(facts));
  return findings;
}

}  // namespace lockstep::internal
