// Addresses of stream sockets: an Endpoint as a person writes it, a SocketAddress as the kernel takes it.
// text -> Endpoint -> resolve -> SocketAddress -> socket, listener. Value types; only resolve() blocks.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"

namespace lockstep {

// A host name or a numeric address, and a port. IPv6 addresses are kept without brackets.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// "host:port", "1.2.3.4:port" or "[::1]:port". Error{invalid_argument} quotes the text and says what is wrong with it.
Endpoint parse_endpoint(std::string_view text);
// A decimal port, 0 to 65535. `what` names it in the error: "MASTER_PORT".
std::uint16_t parse_port(std::string_view text, std::string_view what);
// The inverse of parse_endpoint().
std::string to_string(const Endpoint& endpoint);

class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t length);

  int family() const { return storage_.ss_family; }
  std::uint16_t port() const;
  std::string host() const;  // numeric, with a scope where there is one: "fe80::1%eth0"
  bool is_loopback() const;
  // Of IPv6. It means something only with a scope, which is the name of a network interface of this very host.
  bool is_link_local() const;
  bool has_scope() const;
  // Why it is the address of no host: "means all addresses of a host"; empty if a host can have it.
  std::string_view why_of_no_host() const;
  Endpoint endpoint() const { return {host(), port()}; }

  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

// "127.0.0.1:80", "[::1]:80", "unix socket" for addresses of that family.
std::string to_string(const SocketAddress& address);

// A link-local address that another host has told gets the scope of `own`, an address of this host in the same
// network: "fe80::1%eth0", "fe80::2%wire" -> "fe80::1%wire". Other addresses stay as they are.
Endpoint with_scope_of(const std::string& own, const Endpoint& told);

// The TCP addresses of an endpoint, in the order in which they should be tried; never empty. "localhost" is 127.0.0.1
// and ::1 without asking anybody. A name that does not resolve: Error{invalid_argument}; a resolver that does not
// answer: Error{timeout} at the deadline (its thread is left behind until the resolver gives up).
std::vector<SocketAddress> resolve(const Endpoint& endpoint, Deadline deadline);

}  // namespace lockstep
