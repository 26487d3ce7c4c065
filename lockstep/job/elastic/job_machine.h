// JobMachine decides what becomes of a job on one or several hosts: who belongs to it, when an attempt begins and ends,
// and what follows. events -> JobMachine -> orders. The first host has it; a state machine without I/O and clock. An
// attempt begins when MAX hosts have joined, or MIN and no other within the last-call timeout.
//   a rank fails, or all hang: the others are ended; the next attempt begins while restarts are left
//   a rank cannot be started: the job ends, as after the attempt before
//   a host is lost: the others are ended; the next attempt begins without it, if MIN are there: that is no restart,
//     unless it was lost a short while ago, too. With fewer the job waits for another if restarts are left, or ends
//   two do not reach each other: as if one of them were lost, but it comes back when they do
//   a host is to leave, with MIN < MAX: the ranks are asked to stop, and begin again without it. Without the first host
//     they meet anew. With fewer than MIN the job waits for another
//   a host comes late: beyond MAX it waits for a place; else the ranks are asked to stop, and begin again with it
//   all are to stop: the ranks are asked to; the job ends
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/job/elastic/agent_message.h"
#include "lockstep/job/elastic/handover.h"
#include "lockstep/job/elastic/job_order.h"
#include "lockstep/job/elastic/slots.h"
#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {

class JobMachine {
 public:
  JobMachine(const JobMachineOptions& options, TimePoint now);

  // A host has arrived. The answer if it cannot join the job.
  std::optional<Refused> arrive(const HostEntry& host, TimePoint now);
  bool take_over(const Handover& handover);  // it continues here. False if it already does
  // It is gone; `why`: "its agent has closed the connection". `silent`: it may still run, unseen.
  void lose(int host, const std::string& why, bool silent, TimePoint now);
  // Of another generation than this: ignored.
  void rank_ended(int host, int generation, RankEnd end, TimePoint now);
  void host_done(int host, int generation, TimePoint now);
  void rank_crashed(int host, int generation, int rank, std::vector<std::string> stack);
  // The job hangs, and is to end for it. `blamed`: the rank for which it waits, or -1.
  void hang(std::string verdict, int blamed, TimePoint now);
  // Somebody asks the job to stop: `host` was told to. The second time at one host the ranks are killed.
  void ask_to_stop(int host, int signal, TimePoint now);
  // The host is to leave; asked again, its ranks are killed. REQUIRES: is_elastic().
  void leave(int host, TimePoint now);
  void reach(int host, TimePoint now);                  // a kept-out host reaches the other one again
  void abandon(int exit_code, const std::string& why);  // the next attempt cannot begin
  // What is due. REQUIRES: each order is obeyed before the next call.
  std::vector<JobOrder> take_orders(TimePoint now);
  Deadline wake_at() const;

  const std::vector<HostEntry>& hosts() const { return hosts_; }
  const HostEntry* find(int host) const;
  bool is_elastic() const { return options_.least < options_.most; }
  bool insisted() const { return insisted_; }
  const std::vector<Slot>& slots() const { return slots_; }  // of the attempt
  int generation() const { return generation_; }
  int restarts() const { return restarts_; }
  const Outcome& outcome() const { return outcome_; }  // of the last attempt, without lost hosts' ranks
  bool failed_first() const { return failed_first_; }  // a rank by itself, before any host was lost
  bool had_slot(int host) const;                       // in any attempt
  const JobResult& result() const { return result_; }
  bool over() const { return phase_ == Phase::over; }
  const std::vector<int>& busy() const { return busy_; }  // hosts whose ranks run
  bool undisturbed() const { return phase_ == Phase::running && reason_ == Reason::none; }
  bool running() const { return phase_ == Phase::running || phase_ == Phase::ending; }
  bool are_back() const;          // the expected ones
  std::string waits_for() const;  // "1 more host"; empty if it waits for none

 private:
  enum class Phase { gathering, running, ending, over };
  enum class Reason { none, failure, loss, newcomer, leaving, stop };

  HostEntry* entry(int host);
  bool has_slot(int host) const;
  int available() const;
  bool is_asked() const { return !asks_at_.empty(); }  // to stop
  void end_because(Reason reason, std::optional<TimePoint> at);
  void take_in(TimePoint now);
  void remove(int host);
  void note_loss(const LostHost& lost, TimePoint now);
  void conclude(TimePoint now, std::vector<JobOrder>& orders);
  bool take_restart();
  bool goes_on_after_failure(std::vector<JobOrder>& orders);
  bool goes_on_after_loss(std::vector<JobOrder>& orders);
  void part_separated(TimePoint now, std::vector<JobOrder>& orders);
  void dismiss_leaving(std::vector<JobOrder>& orders);
  void all_leave_or_dismiss(std::vector<JobOrder>& orders);
  void finish(int exit_code, std::string text, std::vector<JobOrder>& orders);
  void gather_again(TimePoint now);
  std::optional<TimePoint> begins_at() const;
  void begin();
  TimePoint stops_at() const;

  const JobMachineOptions options_;
  Phase phase_ = Phase::gathering;
  Reason reason_ = Reason::none;
  std::vector<HostEntry> hosts_;
  std::vector<Slot> slots_;
  std::vector<int> busy_;
  int generation_ = -1;
  int restarts_ = 0;
  int expected_ = 0;  // hosts that were to meet again
  int round_ = 0;
  bool steady_ = false;  // all hosts took part before: no last call
  std::optional<TimePoint> enough_since_;
  TimePoint waiting_since_;
  std::optional<TimePoint> fence_;      // no attempt begins before: a host that is not seen stops itself by then
  std::optional<TimePoint> failed_at_;  // the attempt's first failure
  std::optional<int> code_before_;      // of the attempt before this one
  bool failed_first_ = false;
  std::optional<TimePoint> end_at_;  // when the ranks are told
  bool told_ = false;
  std::map<int, TimePoint> asks_at_;  // to stop: by the host that was told to, the first time
  bool insisted_ = false;
  bool kill_told_ = false;
  std::map<int, TimePoint> leaves_at_;          // by host: when it was asked to
  std::vector<int> to_kill_;                    // hosts that were asked twice
  std::map<std::string, TimePoint> last_lost_;  // by a host's name
  std::string lost_again_;                      // a host, in this attempt
  std::set<int> had_slot_;                      // hosts that had a place in any attempt
  Outcome outcome_;
  JobResult result_;
};

}  // namespace lockstep::internal
