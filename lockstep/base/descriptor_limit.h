// The soft limit on descriptors (RLIMIT_NOFILE). A rank has a few descriptors for every other one, and the usual soft
// limit of 1024, which is there for programs that use select(), ends a job of a few hundred ranks.
#pragma once

#include <sys/resource.h>

namespace lockstep::internal {

// Raises it to the hard limit, or to 2^20 if that is larger: some programs close every number below it. Returns the
// limits as they were. Error{internal} if the kernel refuses. Thread-safe.
rlimit raise_descriptor_limit();

}  // namespace lockstep::internal
