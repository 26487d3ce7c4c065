// While it lives, a DescriptorLimit raises the soft limit on descriptors (RLIMIT_NOFILE) to what a job's launcher
// needs. Ranks start with the previous limit, since programs that use select() break above 1024. One at a time in a
// process; not thread-safe.
#pragma once

#include <sys/resource.h>

namespace lockstep::internal {

class DescriptorLimit {
 public:
  // Error{invalid_argument} if the hard limit is too low for so many ranks; the text says what to do.
  explicit DescriptorLimit(int ranks);
  ~DescriptorLimit();  // restores the soft limit
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

  const rlimit& before() const { return before_; }

 private:
  rlimit before_{};
};

}  // namespace lockstep::internal
