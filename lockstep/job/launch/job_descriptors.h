// While it lives, the soft limit on descriptors is raised, for a job's launcher and the ranks that it starts.
// One at a time in a process; not thread-safe.
#pragma once

#include <sys/resource.h>

namespace lockstep::internal {

class JobDescriptors {
 public:
  // Error{invalid_argument} if the hard limit is too low for so many ranks; the text says what to do.
  explicit JobDescriptors(int ranks);
  ~JobDescriptors();  // restores the soft limit
  JobDescriptors(const JobDescriptors&) = delete;
  JobDescriptors& operator=(const JobDescriptors&) = delete;

 private:
  const rlimit before_;
};

}  // namespace lockstep::internal
