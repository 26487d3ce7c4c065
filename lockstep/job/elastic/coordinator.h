// A Coordinator connects the part of an agent that runs its host's ranks to the first host: the LocalCoordinator in the
// first host's agent, or a link to it. Used by one thread, in its poll loop; never blocks for long.
#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/job/elastic/agent_message.h"
#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {

class Coordinator {
 public:
  virtual ~Coordinator() = default;

  virtual void watch(std::vector<pollfd>& set) const = 0;
  virtual Deadline wake_at() const = 0;
  // Reads and writes what it can. To be called after each wait.
  virtual void tend() = 0;

  // To the first host, and messages from it.
  virtual void post(const AgentMessage& message) = 0;
  virtual std::optional<AgentMessage> take() = 0;
  // The first host shows output as fast as its reader takes it; until then no more is to be posted.
  virtual bool takes_output() const { return true; }
  // Why the first host is lost; empty if it is not.
  virtual std::string lost() const { return {}; }
  // For how long the first host's agent has not answered, though its host does.
  virtual Duration frozen_for() const { return {}; }
  // Another agent of this machine gathers the same job, with other hosts: this one joins it.
  virtual bool yields() const { return false; }
  // How the attempts ended, as far as known here.
  virtual std::vector<Outcome> outcomes() const { return {}; }
  // The job is over: sends what is queued, for a moment.
  virtual void close() {}
};

}  // namespace lockstep::internal
