// A Reaper is a small helper process that outlives its launcher by a moment: if the launcher dies without stopping its
// ranks (SIGKILL, a crash), it kills their process groups and all other processes that carry the job's id. Made before
// the first rank; not thread-safe.
#pragma once

#include <string>

#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

class Reaper {
 public:
  // Returns once signals to this process's group do not reach the helper. Throws Error{internal} if no process can be
  // made.
  explicit Reaper(const std::string& job_id);
  ~Reaper();  // ends the helper; the ranks are not killed
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

  // A rank writes its pid here (as a pid_t) before it executes, which registers its process group.
  int fd() const { return writer_.get(); }
  int pid() const { return pid_; }
  // The rank has been reaped: its pid may be reused from now on.
  void forget(int pid) noexcept;

 private:
  int pid_ = -1;
  UniqueFd writer_;
};

}  // namespace lockstep::internal
