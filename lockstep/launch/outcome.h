// Outcome says how each rank of a process tree ended, and which failure came first. Values; no I/O.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/launch/exit_status.h"

namespace lockstep {

struct RankEnd {
  int rank = 0;
  int pid = 0;
  ExitStatus status;
  std::string failure;        // "exited with code 3", "raised: boom"; empty if it ended well
  bool lost_a_peer = false;   // its failure says that it followed another's
  bool told_to_stop = false;  // it ended after the launcher had told it to
  bool killed = false;        // it did not, and the launcher killed it
  int round = 0;              // deaths seen at the same moment share a round
  Duration after_start{};
  std::deque<std::string> last_error_lines;
};

struct Outcome {
  std::vector<RankEnd> ranks;
  int stop_signal = 0;  // the signal that told the launcher to stop, 0 if none

  // The rank whose failure came first; null if none failed by itself. Within one round, a rank that reports a lost peer
  // comes after one that does not, an exit after a signal, a higher rank after a lower one.
  const RankEnd* first_failure() const;
};

// "rank 1 (pid 811) exited with code 3"
std::string describe_failure(const RankEnd& end);
// The lines of the launcher's last word: who failed first, its last lines, what became of the others. Empty if all is
// well.
std::vector<std::string> report(const Outcome& outcome);

}  // namespace lockstep
