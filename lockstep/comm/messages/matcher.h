// A Matcher pairs the receives that were posted with the messages that have arrived: by sender and tag, each side in
// its order; a receive from any rank takes what arrived first. One of the two sides is always empty for a pair that
// fits. One thread at a time; never blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "lockstep/comm/messages/operation.h"

namespace lockstep::internal {

// A message without a receive: here with its bytes, or still with its sender, which has
// sent an RTS.
struct Arrived {
  enum class Where : std::uint8_t { here, at_sender, local };

  Where where = Where::here;
  int peer = -1;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint64_t id = 0;         // at_sender: what it is called there
  std::vector<std::byte> data;  // here
  OperationPtr send;            // local: this rank's own send, which waits for its receive
};

class Matcher {
 public:
  // The receive that has waited longest for a message of this rank and tag, taken out; or null.
  OperationPtr take_receive(int peer, std::uint64_t tag);
  // The message that the receive has to take, taken out.
  std::optional<Arrived> take_arrived(const Envelope& receive);

  // For those that found nobody. A receive is put in the order of its number.
  void add(OperationPtr receive);
  void add(Arrived arrived);

  // Whether it was here, without a match.
  bool remove(const Operation& receive);
  bool remove_at_sender(int peer, std::uint64_t tag, std::uint64_t id);
  bool remove_local(const Operation& send);
  // All messages that a rank still has; what arrived whole stays.
  void forget_at_sender(int peer);

 private:
  struct Queues {
    std::list<OperationPtr> receives;
    std::list<Arrived> arrived;
  };
  using Tags = std::unordered_map<std::uint64_t, Queues>;

  template <class Fits>
  bool remove_arrived(std::uint64_t tag, Fits&& fits);
  void tidy(Tags::iterator queues);

  Tags tags_;
};

}  // namespace lockstep::internal
