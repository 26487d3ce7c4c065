// The jobs of this user as a table, as lines for each rank, and as JSON. Values in, text out.
#pragma once

#include <string>
#include <vector>

#include "lockstep/inspect/job_list.h"

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
// "3:07", "2:03:07", "4 d 02:03"
std::string age_text(double seconds);

}  // namespace lockstep::internal
