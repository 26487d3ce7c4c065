// LocalJob is the launcher's side of a job whose ranks all run on this machine: it hosts the job's store, generates its
// token, provides memory for flight recordings, and builds each rank's command. launcher -> store -> rendezvous. The
// store lives as long as this object. Not thread-safe.
#pragma once

#include <sys/resource.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/launch/child_process.h"
#include "lockstep/launch/flight_recordings.h"
#include "lockstep/launch/oom_kills.h"

namespace lockstep::internal {

// While it lives, a DescriptorLimit raises the soft limit on descriptors (RLIMIT_NOFILE) to what a job's launcher
// needs. Ranks start with the previous limit, since programs that use select() break above 1024. One at a time in a
// process; not thread-safe.
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

struct JobOptions {
  int ranks = 1;
  int threads_per_rank = 0;               // 0: OMP_NUM_THREADS if it is set, else cores / ranks, at least 1
  std::string master_addr = "127.0.0.1";  // for other libraries; Lockstep's own store does not use it
  int master_port = 0;                    // 0: a free one
  std::vector<std::pair<std::string, std::string>> environment{};  // added last
};

class LocalJob {
 public:
  // Throws Error{internal} if the store cannot listen on 127.0.0.1, Error{invalid_argument} if the limit on descriptors
  // is too low for so many ranks.
  explicit LocalJob(JobOptions options);
  ~LocalJob();

  const std::string& id() const { return id_; }
  // The rank's command. Standard input is the caller's for rank 0 unless that is a terminal (a process group of its own
  // may not read it), else /dev/null.
  Command command(int rank, const std::string& path, const std::vector<std::string>& argv) const;
  // The ranks' flight recordings.
  const FlightRecordings& recordings() const { return recordings_; }
  // Why a rank with this exit status failed: a text, and from its recording the rank that caused it.
  Failure judge(int rank, const ExitStatus& status) const;
  // "2 ranks on this machine, 1 thread each (2 cores)"
  std::string description() const;

 private:
  struct Parts;

  JobOptions options_;
  DescriptorLimit descriptor_limit_;
  OomKills oom_kills_;
  std::string id_;
  int cores_;
  bool threads_from_user_ = false;
  std::string threads_;  // what OMP_NUM_THREADS will say
  std::unique_ptr<Parts> parts_;
  FlightRecordings recordings_;
};

// `base` (as environ) with `changes` made: each name occurs once, with its last value.
std::vector<std::string> merge_environment(const char* const* base,
                                           const std::vector<std::pair<std::string, std::string>>& changes);

}  // namespace lockstep::internal
