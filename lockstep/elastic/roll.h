// Roll decides what becomes of a job on several hosts: who belongs to it, when an attempt begins and ends, and what
// follows. events -> Roll -> orders. It is the first host's; a state machine without I/O and without a clock of its
// own. An attempt begins when MAX hosts are there, or MIN and nobody else has come for the time of the last call.
//   a rank fails, or all hang    the others are ended; the next attempt begins while restarts are left
//   a host is lost       the others are ended; the next attempt begins without it, if MIN are there: that is no
//                        restart. With fewer the job waits for another if restarts are left (and uses one), or ends
//   a host comes late    beyond MAX it waits for a place; else the ranks are asked to stop, and begin again with it
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/elastic/agent_message.h"
#include "lockstep/elastic/roster.h"
#include "lockstep/launch/outcome.h"

namespace lockstep::internal {

struct RollOptions {
  int least = 1;  // hosts
  int most = 1;
  int max_restarts = 0;
  Duration join_timeout = std::chrono::seconds(600);
  Duration last_call = std::chrono::seconds(30);
};

// What the first host is to do.
struct RollOrder {
  enum class Kind {
    start,  // the attempt begins on the hosts of `seats`
    stop,   // a request, with `signal`
    end,    // as after a failure
    kill,
    report,  // the attempt is over: see outcome()
    finish,  // the job is: see result()
  };
  Kind kind = Kind::start;
  int signal = 0;
};

struct JobResult {
  int exit_code = 0;
  std::string text = {};  // why it ended, where that is not in the outcome
};

class Roll {
 public:
  static constexpr int kNobodyCame = 3;  // the exit code

  Roll(const RollOptions& options, TimePoint now);

  // A host has come. The answer if it cannot belong to the job.
  std::optional<Refused> arrive(const HostEntry& host, TimePoint now);
  // It is gone; `why`: "its agent has closed the connection". `silent`: it may still run, unseen.
  void lose(int host, const std::string& why, bool silent, TimePoint now);
  // Of this generation. Other ones are ignored.
  void rank_ended(int host, int generation, RankEnd end, TimePoint now);
  void host_done(int host, int generation, TimePoint now);
  // How a rank of this attempt crashed.
  void rank_crashed(int host, int generation, int rank, std::vector<std::string> stack);
  // The job hangs, and is to end for it. `blamed`: the rank for which it waits, or -1.
  void hang(std::string verdict, int blamed, TimePoint now);
  // Somebody asks the job to stop: `host` was told to.
  void ask_to_stop(int host, int signal, TimePoint now);
  // What is due. REQUIRES: each order is obeyed before the next call.
  std::vector<RollOrder> take_orders(TimePoint now);
  Deadline wake_at() const;

  const std::vector<HostEntry>& hosts() const { return hosts_; }
  const HostEntry* find(int host) const;
  const std::vector<Seat>& seats() const { return seats_; }  // of the attempt
  int generation() const { return generation_; }
  int restarts() const { return restarts_; }
  // How the last attempt went. Lost hosts' ranks are missing among its ranks.
  const Outcome& outcome() const { return outcome_; }
  // A rank failed by itself, before any host was lost.
  bool failed_first() const { return failed_first_; }
  bool was_seated(int host) const;  // in any attempt
  const JobResult& result() const { return result_; }
  bool over() const { return phase_ == Phase::over; }
  const std::vector<int>& busy() const { return busy_; }  // hosts whose ranks run
  bool undisturbed() const { return phase_ == Phase::running && reason_ == Reason::none; }
  bool running() const { return phase_ == Phase::running || phase_ == Phase::ending; }
  // For whom it waits: "1 more host"; empty if it does not.
  std::string waits_for() const;

 private:
  enum class Phase { gathering, running, ending, over };
  enum class Reason { none, failure, loss, newcomer, stop };

  bool is_seated(int host) const;
  void end_because(Reason reason, std::optional<TimePoint> at);
  void conclude(TimePoint now, std::vector<RollOrder>& orders);
  void finish(int exit_code, std::string text, std::vector<RollOrder>& orders);
  void gather_again(TimePoint now);
  std::optional<TimePoint> begins_at() const;
  void begin();
  Duration moment_after_failure() const;

  const RollOptions options_;
  Phase phase_ = Phase::gathering;
  Reason reason_ = Reason::none;
  std::vector<HostEntry> hosts_;
  std::vector<Seat> seats_;
  std::vector<int> busy_;  // hosts whose ranks of the attempt still run
  int generation_ = -1;
  int restarts_ = 0;
  int round_ = 0;
  bool steady_ = false;  // who is here was here before: no last call
  std::optional<TimePoint> enough_since_;
  TimePoint waiting_since_;
  std::optional<TimePoint> fence_;      // no attempt begins before: a host that is not seen stops itself by then
  std::optional<TimePoint> failed_at_;  // the attempt's first failure
  bool failed_first_ = false;
  std::optional<TimePoint> end_at_;  // when the ranks are told
  bool told_ = false;
  std::optional<TimePoint> asked_at_;
  int asked_by_ = -1;
  bool insisted_ = false;
  bool kill_told_ = false;
  std::set<int> seated_;  // hosts that had a place in any attempt
  Outcome outcome_;
  JobResult result_;
};

}  // namespace lockstep::internal
