// Jobs on several hosts, as `lockstep ps`, `top` and `stop` find them.
#pragma once

#include <string>
#include <vector>

#include "lockstep/job/elastic/outside.h"
#include "lockstep/job/inspect/job_list.h"

namespace lockstep::tools {

using namespace internal;

// How to ask the first host of a job that runs on this machine, with its launcher's token. Error{invalid_argument} if
// the launcher has gone.
OutsideJob outside_job(const Job& job);
// And of one at an endpoint, with the user's token.
OutsideJob outside_job(const std::string& rdzv_endpoint, const std::string& rdzv_id);

// The jobs of this user on this machine, with the ranks of their other hosts. A job whose first host does not answer
// has those of this one, and a warning on standard error.
std::vector<Job> find_jobs_of_hosts();
// The job at an endpoint. Errors as ask_status(), ranks_of_json().
Job find_job_at(const OutsideJob& outside);

}  // namespace lockstep::tools
