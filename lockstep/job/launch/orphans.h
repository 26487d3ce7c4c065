// Orphans are processes that ranks have started and whose parents have ended. To find them, the `lockstep` command
// makes itself their parent (PR_SET_CHILD_SUBREAPER): so it finds those that hide what environment they were started
// with, too, and has to reap them. Not for programs that may have children of their own. Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "lockstep/job/launch/job_processes.h"

namespace lockstep::internal {

class Orphans : public OtherSearch {
 public:
  // From now on this process is the parent of orphans, until it ends. It kills none of the children that it has.
  explicit Orphans(std::string job_id);

  // Reaps those of this process's children that have ended, but not `ours`. Never blocks. Returns how many.
  static int reap(const std::vector<int>& ours) noexcept;
  // Those of the job, with all that they have started. Left are those that show an environment without the job's id.
  Found kill_once(Reach reach) noexcept override;

 private:
  enum class Kind { of_job, hidden, left, unknown };

  Kind kind_of(int pid) const;
  Found visit(int pid, Reach reach);

  const std::string needle_;
  const std::vector<int> spared_;
  const bool is_init_;  // children may be orphans of others
  int passes_ = 0;
};

}  // namespace lockstep::internal
