// A Listener is a bound TCP socket that accepts connections, on exactly the given address. Endpoint -> accept -> fd. It
// never falls back to another interface or to the wildcard: "0.0.0.0" and "::" must be asked for. accept() may be
// called from one thread at a time.
#pragma once

#include "lockstep/base/deadline.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/net/address.h"

namespace lockstep::internal {

class Listener {
 public:
  // Port 0 takes a free one. If the host name has several addresses, the first that this host owns is bound.
  // Error{invalid_argument}: the port is taken (names the holder's pid where /proc shows it), the address is not one of
  // this host, or the port needs privileges.
  static Listener bind(const Endpoint& endpoint, Deadline deadline);

  int fd() const { return fd_.get(); }
  SocketAddress address() const;

  // A waiting connection, non-blocking and tuned; empty if no connection waits. Errors of single connections are
  // skipped; running out of descriptors or memory is Error{internal}.
  UniqueFd accept();

 private:
  explicit Listener(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace lockstep::internal
