// The jobs of this user as a table, as lines for each rank, and as JSON. Values in, text out.
#pragma once

#include <string>
#include <vector>

#include "lockstep/job/inspect/job_list.h"

namespace lockstep::internal {

struct TableOptions {
  bool ranks = false;  // a line for each rank below its job
  // What processes had used of the processor `seconds` before: CPU% is of that time; else of their whole life.
  const std::vector<Job>* before = nullptr;
  double seconds = 0;
};

// A heading, and one line a job. Without jobs: "no jobs of this user are running on this machine".
std::string table_of(const std::vector<Job>& jobs, const TableOptions& options);
std::string json_of(const std::vector<Job>& jobs);
// What another host says of its ranks of a job, as of look_at_ranks(): fits into a HostStatus. Blocks for a moment.
std::string ranks_as_json(const std::string& job_id, const std::vector<int>& pids);
// Back, with the name of the host. Error{corrupt_data} if it is anything else.
std::vector<JobRank> ranks_of_json(const std::string& host, const std::string& text);
// "3:07", "2:03:07", "4 d 02:03"
std::string age_text(double seconds);

}  // namespace lockstep::internal
