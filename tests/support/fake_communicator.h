// Communicators for the fake device, among ranks that are threads of this process. As NCCL's they do not wait: a call
// is over some time after all ranks have queued it, at another time on each, and never if they have queued different
// ones, unless it is aborted.
#pragma once

#include <string>

namespace lockstep::testing {

struct FakeCommunicators {
  bool on_one_device = false;         // as if all ranks had the same
  int longest_delay_us = 200;         // of the end of a call, on each rank
  int never_finished_from = 1 << 30;  // calls from this one on, counted from 0, do not end, as if a kernel hung
  std::string failure = {};           // that the library reports
  bool waits_within = false;          // a call returns when all ranks have made theirs, as NCCL while it connects
};

// While one lives, groups that are made use them for the fake device.
class WithFakeCommunicators {
 public:
  explicit WithFakeCommunicators(const FakeCommunicators& how = {});
  ~WithFakeCommunicators();
  WithFakeCommunicators(const WithFakeCommunicators&) = delete;
  WithFakeCommunicators& operator=(const WithFakeCommunicators&) = delete;
};

// Calls that were queued by any rank, and communicators that were aborted, since the process began.
long fake_communicator_calls();
long fake_communicator_aborts();

}  // namespace lockstep::testing
