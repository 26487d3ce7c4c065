// Reads the variables of other launchers: Slurm's srun, Open MPI's mpirun, MPICH's mpiexec, Flux, an indexed Job of
// Kubernetes. environment -> Launch -> JoinPlan. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/environment.h"

namespace lockstep::internal {

inline constexpr const char* kLoopback = "127.0.0.1";  // Launch::host, if all ranks are on one

struct Launch {
  std::string_view key;       // as LOCKSTEP_LAUNCHER has it: "slurm"
  std::string_view launcher;  // for messages: "Slurm"
  std::string variables;      // that say so: "SLURM_PROCID, SLURM_STEP_NUM_TASKS"
  int rank = 0;
  std::optional<int> size = {};  // not set by a Job of Kubernetes
  std::optional<int> local_rank = {}, local_size = {}, node_rank = {};
  std::string host = {};  // of rank 0, as all ranks can reach it; empty: not known
  std::string job = {};   // distinguishes it from other jobs on these hosts; empty: not known
  std::optional<int> job_fd =
      {};                  // if the job is not known: a socket to the launcher's process that all its ranks share
  std::uint16_t port = 0;  // of rank 0's store; 0: derived from the job
  std::uint64_t generation = 0;
  std::string_view remedy = {};  // how to set the address of rank 0
};

// The launchers that apply, the nearest first: a launcher that another one has started comes before it. Steps of Slurm
// count, the shells of salloc and scripts of sbatch do not. Error{invalid_argument} where a variable cannot be read.
std::vector<Launch> find_launches(const EnvironmentReader& reader);

// That of LOCKSTEP_LAUNCHER; null if it does not apply.
const Launch* find_launch(std::string_view key, const std::vector<Launch>& launches);

// "Slurm (SLURM_PROCID, SLURM_STEP_NUM_TASKS) says rank 3 of 4"
std::string to_string(const Launch& launch);

// A port from 20000 to 29999, which the kernel does not assign by itself; the same on all ranks of the job.
std::uint16_t port_of_job(std::string_view job);

}  // namespace lockstep::internal
