// JobHang decides on the first host whether a job hangs: what the hosts see -> JobHang -> lines, stacks, the end. A
// state machine without I/O and without a clock of its own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/job/elastic/agent_message.h"
#include "lockstep/job/elastic/slots.h"
#include "lockstep/job/launch/hang_decision.h"
#include "lockstep/job/launch/hang_text.h"

namespace lockstep::internal {

class JobHang {
 public:
  // What is to be done now.
  struct Result {
    std::vector<std::string> lines = {};                   // for the user
    std::optional<std::vector<int>> stacks_first_of = {};  // all hosts are to print stacks, beginning with these ranks'
    int blamed = -1;                                       // the rank that they wait for; -1: none in particular
    std::string why = {};                                  // why nothing moves, when that is told of
    std::string verdict = {};                              // why the job is to end; empty: it goes on
  };

  // Of one attempt.
  JobHang(const HangOptions& options, int generation, int world_size, TimePoint now);

  // What a host sees: RankStands of all of its ranks, then HostStands. Other messages are ignored.
  void hear(const HostEntry& host, const AgentMessage& message, TimePoint now);
  // From when on the hosts look closely at ranks that do not move: at least 1.
  int tell_after_ms() const;

  // `hosts`: those whose ranks run. To be called at next_look().
  Result look(const std::vector<int>& hosts, TimePoint now);
  // That the job hangs was told, and nothing has moved since.
  bool has_told() const { return timer_.has_told(); }
  TimePoint next_look() const { return next_look_; }

 private:
  struct Host {
    std::vector<RankSight> coming = {};
    std::vector<RankSight> ranks = {};
    bool is_still = false;
    std::int64_t last_event_ns = 0;  // by the host's clock
    TimePoint last_event = {};       // by this one's
    TimePoint heard_at = {};
  };
  void hear(Host& host, const std::string& name, const RankStands& stands, TimePoint now) const;
  HangSight see(const std::vector<int>& hosts, TimePoint now, TimePoint& last_event) const;

  const int generation_;
  const int world_size_;
  const Duration tell_after_;
  const Duration interval_;
  std::map<int, Host> hosts_;
  HangTimer timer_;
  TimePoint next_look_;
};

}  // namespace lockstep::internal
