// Where a cluster manager has started this `lockstep run`: as one of how many hosts, and where the first one is.
// environment -> LaunchPlace -> the agent's options. Pure.
//
// For one agent a host: srun --ntasks-per-node=1, mpirun with one process a host, flux run, an indexed Job or JobSet of
// Kubernetes, Ray Train. What the user gave on the command line, or by torchrun's PET_* variables as Kubeflow does,
// goes first, then MASTER_ADDR and MASTER_PORT, then the manager's variables: of the one that
// LOCKSTEP_LAUNCHER names, else of the nearest.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/environment.h"

namespace lockstep::internal {

struct HostRange {
  int least = 1;
  int most = 1;
};

// What the command line has said; nothing of it is asked for.
struct GivenPlace {
  std::optional<HostRange> nodes = {};
  std::optional<int> node_rank = {};
  std::string endpoint = {};   // host:port
  std::string rdzv_id = {};    // of the job
  std::string full_name = {};  // of this host, "train-3.train.default.svc.cluster.local"; for Kubernetes
};

struct LaunchPlace {
  std::string source;  // "Slurm (SLURM_PROCID, SLURM_STEP_NUM_TASKS)"
  HostRange nodes = {};
  std::optional<int> node_rank = {};  // nothing: the first host gives one
  std::string endpoint = {};
  std::string rdzv_id = {};  // that of a requeued job is another one
};

// Nothing if no manager has started several agents, or if the command line says where they meet and how many there are.
// Error{invalid_argument} if several agents are on one host, if one manager says that this one is alone and another one
// not, or if a fact is missing; it says what to set.
std::optional<LaunchPlace> find_launch_place(const EnvironmentReader& reader, const GivenPlace& given);

}  // namespace lockstep::internal
