// Outcome says how each rank of a process tree ended, and which failure came first. Values; no I/O.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/launch/exit_status.h"

namespace lockstep {

// How far a failure is from being the cause of the job's.
enum class Fault {
  own,           // nothing says that another rank has to do with it
  disagreement,  // ranks waited for each other, or called different things: any of them may be wrong
  consequence,   // it says that another rank was lost, or ended the group
};

struct Failure {
  std::string text = {};  // "exited with code 3", "raised: boom"; empty if the rank ended well
  Fault fault = Fault::own;
  int blamed = -1;  // the rank that it names; -1: none
};

struct RankEnd {
  int rank = 0;
  int pid = 0;
  ExitStatus status;
  Failure failure;
  bool told_to_stop = false;  // it ended after the launcher had told it to
  bool killed = false;        // it did not, and the launcher killed it
  int round = 0;              // deaths seen at the same moment share a round
  std::string error;          // the first line of its error; empty: not known
  Duration after_start{};
  std::deque<std::string> last_error_lines;
};

struct Outcome {
  std::vector<RankEnd> ranks;
  int stop_signal = 0;  // the signal that told the launcher to stop, 0 if none

  // The rank whose failure caused the others; null if none failed by itself. Of those that failed before the launcher
  // told them to stop: one with a fault of its own before one that disagreed with others, and that before one that
  // followed; then one that others name; one that a signal ended before one that exited; the one seen first; the lower
  // rank.
  const RankEnd* first_failure() const;
};

// Ended by a signal that is no program's way to report an error.
bool was_struck(const ExitStatus& status);
// "rank 1 (pid 811) exited with code 3"
std::string describe_failure(const RankEnd& end);
// The lines of the launcher's last word: who failed first, its error and last lines, what became of the others. Empty
// if all is well.
std::vector<std::string> report(const Outcome& outcome);

}  // namespace lockstep
