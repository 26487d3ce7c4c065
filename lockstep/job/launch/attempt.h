// Attempt is one generation of a job on this machine: the command of each rank, memory for what it records, what the
// kernel kills meanwhile for lack of memory, and why a rank failed. LocalJob, Place -> Attempt -> process tree. A
// restart makes a new one, so nothing of an earlier attempt is read. Not thread-safe.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "lockstep/job/launch/child_process.h"
#include "lockstep/job/launch/error_file.h"
#include "lockstep/job/launch/flight_recordings.h"
#include "lockstep/job/launch/local_job.h"
#include "lockstep/job/launch/oom_kills.h"

namespace lockstep::internal {

// Where the ranks of this host stand in an attempt.
struct Place {
  int generation = 0;  // attempts before this one
  int restarts = 0;    // failures that were answered with a restart: RESTART_COUNT
  int node_rank = 0;
  int nodes = 1;
  int first_rank = 0;  // the lowest of this host
  int world_size = 1;
  std::string store = {};                 // "host:port"
  std::string master_addr = "127.0.0.1";  // for other libraries; Lockstep's own store does not use it
  int master_port = 0;
  std::string restart_reason = {};  // of a restart: as of restart_reason()
};

class Attempt {
 public:
  // Borrows the job. Throws Error{internal} if there is no memory, or a rank's cgroup cannot be made.
  Attempt(const LocalJob& job, Place place);

  // By rank of the job. In the arguments "${local_rank}" becomes the local rank. Standard input is the caller's for
  // rank 0 unless that is a terminal (a process group of its own may not read it), else /dev/null.
  Command command(int rank, const std::string& path, const std::vector<std::string>& argv) const;
  const FlightRecordings& recordings() const { return recordings_; }
  const Place& place() const { return place_; }
  // Why a rank with this exit status failed: a text, and from its recording the rank that caused it. How far its limits
  // were reached, in any case.
  Failure judge(int rank, const ExitStatus& status) const;

 private:
  int local(int rank) const { return rank - place_.first_rank; }
  Variables variables(int rank) const;
  const RankCgroup* cgroup(int rank) const;  // null: it has no limits

  const LocalJob& job_;
  Place place_;
  FlightRecordings recordings_;
  std::vector<ErrorFile> errors_;
  std::deque<RankCgroup> cgroups_;  // by local rank; none without limits
  OomKills oom_kills_;
};

}  // namespace lockstep::internal
