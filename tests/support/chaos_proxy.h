// A ChaosProxy stands between clients and a server and does to their bytes what bad networks do.
// client <-> proxy (a port of 127.0.0.1, or any address) <-> server. One thread; all functions may be called from any.
//
// Every client's connection gets a number, in the order in which they come, and a Fault of its own from the plan. What
// happens depends on the seed, the plan and the bytes alone, not on how they were cut on the way in; times are those of
// the machine. tests/support/chaos_proxy_main.cpp makes a program of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "lockstep/base/clock.h"
#include "lockstep/comm/net/address.h"

namespace lockstep::testing {

using namespace internal;

enum class Way : std::uint8_t { to_server, to_client };

struct Fault {
  enum class Kind {
    none,
    cut,         // both ends see the end of the stream
    reset,       // both ends see a connection reset
    half_close,  // the receiver sees the end, and the sender can go on sending in vain; the other way lives on
    freeze,      // nothing is forwarded any more, either way, and the connections stay open
    flip,        // one bit of the byte is the other way round; everything goes on
  } kind = Kind::none;
  Way way = Way::to_server;
  std::uint64_t at = 0;  // how many bytes pass that way before it happens; the flipped one is the next
};

struct ChaosPlan {
  std::uint64_t seed = 1;  // of the sizes of pieces, the jitter and the flipped bits
  Duration delay = Duration::zero();
  Duration jitter = Duration::zero();       // at most so much more delay; the order of bytes stays
  std::size_t bytes_per_second = 0;         // each way of each connection; 0: as fast as they come
  std::size_t largest_piece_bytes = 65536;  // bytes travel on in pieces of 1 to this many
  std::function<Fault(int connection)> fault = {};
};

class ChaosProxy {
 public:
  ChaosProxy(const Endpoint& target, ChaosPlan plan, const Endpoint& listen = {"127.0.0.1", 0});
  // Closes all connections.
  ~ChaosProxy();

  Endpoint endpoint() const;
  int connections() const;  // that have come so far

  // How many bytes have been forwarded on a connection so far.
  std::uint64_t passed(int connection, Way way) const;

  // For all connections, present and future, until thaw().
  void freeze();
  void thaw();
  // Resets the present connections.
  void cut_all();
  // From now on, who comes is turned away (with a reset).
  void refuse();

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace lockstep::testing
