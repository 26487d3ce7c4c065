// A host that is kept out of attempts since it does not reach another one: tries to, until it does. Used by one thread.
#pragma once

#include <cstdint>

#include "lockstep/base/deadline.h"
#include "lockstep/job/elastic/agent_message.h"

namespace lockstep::internal {

class KeptOut {
 public:
  // A port at which nobody listens answers, too.
  KeptOut(KeepOut from, std::uint16_t port);

  Deadline wake_at() const { return try_at_; }
  // Tries when it is time, for a moment. True when the other host is reached; and after a minute, since a firewall may
  // drop what is tried here.
  bool is_over();

 private:
  const KeepOut from_;
  const std::uint16_t port_;
  const Deadline give_up_at_;
  Deadline try_at_;
};

}  // namespace lockstep::internal
