// What a JobMachine is told at its beginning, and what it tells: its orders and the job's result. Values.
#pragma once

#include <chrono>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {

struct JobMachineOptions {
  int least = 1;  // hosts
  int most = 1;
  int max_restarts = 0;
  Duration join_timeout = std::chrono::seconds(600);
  Duration last_call = std::chrono::seconds(30);
  Duration loss_interval = std::chrono::seconds(600);  // a host that is lost again within it costs a restart
  int stop_exit_code = kStoppedExitCode;
};

// What the first host is to do.
struct JobOrder {
  enum class Kind {
    start,     // the attempt begins on the hosts of `slots`
    stop,      // a request, with `signal`
    end,       // as after a failure
    kill,      // the ranks of `host`, or all
    dismiss,   // `host` has left
    keep_out,  // `host` until it reaches `other`
    report,    // the attempt is over: see outcome()
    finish,    // the job is: see result()
  };
  Kind kind = Kind::start;
  int signal = 0;
  int host = -1;
  int other = -1;
};

struct JobResult {
  int exit_code = 0;
  std::string text = {};  // why it ended, where that is not in the outcome
  bool goes_on = false;   // the first host has left: the others meet anew
};

}  // namespace lockstep::internal
