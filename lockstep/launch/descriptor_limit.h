// DescriptorLimit lets this process open the descriptors that a job's launcher needs, as long as it lives: it raises
// the soft limit (RLIMIT_NOFILE). Ranks are started with the limit of before, since programs that use select() break
// above 1024. One at a time in a process; not thread-safe.
#pragma once

#include <sys/resource.h>

namespace lockstep {

class DescriptorLimit {
 public:
  // Error{invalid_argument} if the hard limit is too low for so many ranks; the text says what to do.
  explicit DescriptorLimit(int ranks);
  ~DescriptorLimit();  // puts the soft limit back
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

  const rlimit& before() const { return before_; }

 private:
  rlimit before_{};
};

}  // namespace lockstep
