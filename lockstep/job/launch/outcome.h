// Outcome says how each rank of a process tree ended, and which failure came first. Values; no I/O.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/job/launch/exit_codes.h"
#include "lockstep/job/launch/rank_limits.h"

namespace lockstep::internal {

// How a process ended.
struct ExitStatus {
  int code = 0;    // meaningful if signal is 0
  int signal = 0;  // 0 if the process exited by itself
  bool core_dumped = false;
  std::int64_t peak_bytes = 0;  // of memory that it had at one time; 0: not known

  bool ok() const { return code == 0 && signal == 0; }
  // What a shell reports: the code, or 128 + signal.
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
};

// "SIGSEGV"; "signal 40" for one without a name.
std::string signal_name(int signal);
// "exited with code 3", "was killed by SIGSEGV (core dumped)"
std::string describe(const ExitStatus& status);

// How a failure relates to the cause of the job's failure.
enum class Fault {
  own,           // no sign of another rank
  disagreement,  // ranks waited for each other, or called different operations: any of them may be wrong
  consequence,   // another rank was lost, or ended the group
};

// Whether a rank that was told to stop ended by something else than the signals that it got for it.
enum class OwnEnd {
  no,
  after_request,  // all ranks had been asked to stop
  after_failure,  // it was told so because of another rank
};

struct Failure {
  std::string text = {};  // "exited with code 3", "raised: boom"; empty if the rank ended well
  Fault fault = Fault::own;
  int blamed = -1;  // the rank that it names, or -1
  std::string last_operation = {};
  std::optional<std::int64_t> lateness_ns = {};  // of it: how long after the first rank of this host it was begun
  std::string error = {};  // its error in one line, if the rank said it to the launcher; empty: not known
  // Whether SIGKILL came from the kernel for lack of memory; nothing: not known.
  std::optional<bool> out_of_memory = {};
  std::optional<LimitUse> limits = {};  // also if it ended well; nothing: it had none
};

inline constexpr int kNotStarted = -1;  // RankEnd::pid
struct RankEnd {
  int rank = 0;
  std::string host = {};  // empty: this one
  int pid = 0;            // or kNotStarted
  ExitStatus status;
  Failure failure;
  bool told_to_stop = false;  // it ended after the launcher had told it to stop
  OwnEnd own_end = OwnEnd::no;
  bool killed = false;         // it did not stop, and the launcher killed it
  bool was_suspended = false;  // by SIGSTOP or the like, when the launcher told it to stop because of another
  int round = 0;               // deaths seen at the same moment share a round
  std::string error;           // the first line of its error; empty: not known. See error_of()
  std::string last_operation;  // that it has begun; empty: none, or not known
  Duration after_start{};
  std::deque<std::string> last_error_lines;
  std::vector<std::string> stack = {};  // of the crash that ended it, in lines; empty: not known
};

// A host that was lost while its ranks ran: how they ended is not known, unless its agent is there.
struct LostHost {
  std::string host = {};
  int first_rank = 0;
  int ranks = 1;
  std::string why = {};
  bool is_here = false;  // it is reached, but not by all others
};
// "host b (ranks 8 to 15) is lost: its agent has closed the connection"
std::string describe(const LostHost& lost);

struct Outcome {
  std::vector<RankEnd> ranks;
  int stop_signal = 0;    // the signal that told the launcher to stop, 0 if none
  std::string hang = {};  // which ranks waited for which in vain, if the launcher ended them for it
  int hang_blamed = -1;   // the rank that they waited for; -1: none in particular, or not known
  std::vector<LostHost> lost = {};
  std::string apart = {};              // two hosts that do not reach each other, if neither could be left out
  std::vector<std::string> left = {};  // hosts that were asked to leave while their ranks ran
  int stop_exit_code = kStoppedExitCode;

  // The rank whose failure caused the others; null if none failed by itself. In this order of precedence: its own
  // failure, then a disagreement, then a consequence; before it was told to stop; named by others; ended by a signal;
  // seen first; the lower rank. Of those that were told to stop only such with an own end: after a request to stop or
  // to leave, by their own failure (0, the stop_exit_code, and 128 + SIGTERM, SIGINT or the stop_signal are none);
  // after another's failure, named by one that had not been told.
  const RankEnd* first_failure() const;
  // That, or the rank for which a job that hung has waited; null if there is neither.
  const RankEnd* cause() const;
  bool failed() const { return !hang.empty() || !lost.empty() || first_failure() != nullptr; }
};

// Of a job that ended like this: that of the rank that failed first; kHangExitCode; the stop_exit_code if it was asked
// to stop before all ranks had ended.
int exit_code_of(const Outcome& outcome);

// Ended by a signal that programs do not use to report an error.
bool was_struck(const ExitStatus& status);
std::string failure_text(const RankEnd& end);  // or that the launcher killed it; empty if it ended well
// What the rank said of its error, if that ended it. A rank that SIGKILL ended had no error; what it said before, it
// has handled.
const std::string& error_of(const RankEnd& end);
// "rank 1 (pid 811) exited with code 3"; "rank 9 (host n2, pid 811) ..." where there are several
std::string describe_failure(const RankEnd& end);
// Why a job that ended like this begins again, in one line.
std::string restart_reason(const Outcome& outcome);
// "rank 3"; "ranks 0 to 6, 8, 9"
std::string ranks_text(std::vector<int> ranks);
// The launcher's final report: the rank that failed first, its error and last lines, and how the others ended. Empty
// after success, unless ranks stood still for their limit of CPUs.
std::vector<std::string> report(const Outcome& outcome);

}  // namespace lockstep::internal
