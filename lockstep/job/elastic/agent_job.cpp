#include "lockstep/job/elastic/agent_job.h"

#include "lockstep/base/format.h"
#include "lockstep/job/launch/attempt.h"

namespace lockstep::internal {
namespace {

Variables environment_of(const AgentOptions& options, const std::string& tag) {
  if (options.is_alone) return options.environment;
  const std::string outer = outer_jobs();
  Variables variables{
      {"LOCKSTEP_OUTER_JOBS", fmt::format("LOCKSTEP_JOB_ID={}{}{}", tag, outer.empty() ? "" : " ", outer)},
      {"LOCKSTEP_RDZV_ENDPOINT", to_string(options.endpoint)}};
  if (!options.local_addr.empty()) variables.emplace_back("LOCKSTEP_ADDRESS", options.local_addr);
  variables.insert(variables.end(), options.environment.begin(), options.environment.end());
  return variables;
}

}  // namespace

JobOptions job_options(const AgentOptions& options, const std::string& job_id, const std::string& tag) {
  return {.ranks = options.ranks,
          .max_restarts = options.max_restarts,
          .run_id = options.rdzv_id,
          .role = options.role,
          .virtual_local_rank = options.virtual_local_rank,
          .placements = options.placements,
          .cgroup = options.cgroup,
          .environment = environment_of(options, tag),
          .id = job_id,
          .token = options.token};
}

}  // namespace lockstep::internal
