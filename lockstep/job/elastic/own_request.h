// The user's request to this host (stop or leave), also while the first host cannot receive it: it is frozen or has
// left. signals -> OwnRequest -> Agent. Used by one thread.
#pragma once

#include <optional>

#include "lockstep/base/deadline.h"
#include "lockstep/job/elastic/agent_options.h"
#include "lockstep/job/elastic/coordinator.h"
#include "lockstep/job/elastic/meeting.h"
#include "lockstep/job/launch/signal_relay.h"

namespace lockstep::internal {

class OwnRequest {
 public:
  explicit OwnRequest(const AgentOptions& options) : options_(options) {}

  void hear(int signal, TimePoint now);
  bool is_made() const { return signal_.has_value(); }
  // Another signal. Whether it insists on what was asked: after SIGTERM for this host an interrupt is the first request
  // to stop the job.
  bool insist(int signal);
  // Another signal while no ranks run. If it insists, this host need not wait for the others: see ends_alone().
  void insist_without_ranks(int signal, TimePoint now);
  bool ends_alone() const { return ends_alone_; }
  // The others have to meet again, since the first host has left. Nothing if this host does not take part: it leaves
  // too, or was asked twice. Blocks.
  std::optional<Met> meet_again(SignalRelay& signals, bool listens_first, const Handover& handover);
  // The first host's agent does not answer, and this host is to leave or stop: it waits for as long as ranks have to
  // save, and not if it is asked again. Says so.
  bool waits_in_vain(const Coordinator& coordinator);
  // Of this host if the first one sends none. Logs how the job goes on.
  int exit_code() const;

 private:
  bool leaves() const;

  const AgentOptions& options_;
  std::optional<int> signal_;
  TimePoint heard_at_{};
  bool insists_ = false;
  bool ends_alone_ = false;
  bool is_frozen_ = false;
};

}  // namespace lockstep::internal
