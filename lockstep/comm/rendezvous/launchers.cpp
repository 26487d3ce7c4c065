#include "lockstep/comm/rendezvous/launchers.h"

#include <algorithm>
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/hash.h"
#include "lockstep/comm/rendezvous/hostlist.h"

namespace lockstep::internal {
namespace {

// Slurm numbers what is not started by srun from here on: the shells of salloc, scripts of sbatch, prologues.
constexpr std::uint32_t kFirstSpecialStep = 0xfffffff0;

Error missing_half(const char* name, const char* because_of) {
  return Error(ErrorKind::invalid_argument,
               fmt::format("{} is set, but {} is not: the same launcher sets both, so something has removed it",
                           because_of, name));
}

int required_number(const EnvironmentReader& reader, const char* name, const char* because_of) {
  const auto number = reader.number<int>(name);
  if (number) return *number;
  throw missing_half(name, because_of);
}

bool in_slurm_step(const EnvironmentReader& reader) {
  const auto step = reader.number<std::uint32_t>("SLURM_STEP_ID");
  if (!step && reader.number<int>("SLURM_PROCID").value_or(0) > 0) {
    throw missing_half("SLURM_STEP_ID", "SLURM_PROCID");  // the script of sbatch has none either, but it is number 0
  }
  return step && *step < kFirstSpecialStep && reader.has("SLURM_PROCID");
}

std::string slurm_job(const EnvironmentReader& reader) {
  return fmt::format("slurm-{}.{}", reader.first_of({"SLURM_JOB_ID", "SLURM_JOBID"}).value_or("?"),
                     reader.text("SLURM_STEP_ID").value_or("?"));
}

// Of the hosts that the variable lists, the first; "" if it is not set.
std::string first_host(const EnvironmentReader& reader, std::initializer_list<const char*> names) {
  const auto list = reader.first_of(names);
  return list ? expand_hosts(*list).front() : "";
}

std::optional<Launch> find_slurm(const EnvironmentReader& reader) {
  if (!in_slurm_step(reader)) return std::nullopt;
  const char* size_name = reader.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  Launch launch{.key = "slurm",
                .launcher = "Slurm",
                .variables = fmt::format("SLURM_PROCID, {}", size_name),
                .rank = required_number(reader, "SLURM_PROCID", "SLURM_STEP_ID"),
                .size = required_number(reader, size_name, "SLURM_PROCID")};
  launch.local_rank = reader.number<std::uint16_t>("SLURM_LOCALID");
  launch.node_rank = reader.number<int>("SLURM_NODEID");
  if (const auto tasks = reader.text("SLURM_STEP_TASKS_PER_NODE"); tasks && launch.node_rank) {
    const std::vector<int> counts = expand_counts(*tasks);
    const auto node = static_cast<std::size_t>(*launch.node_rank);
    if (node < counts.size()) launch.local_size = counts[node];
  }
  launch.job = slurm_job(reader);
  const bool one_host = reader.number<int>("SLURM_STEP_NUM_NODES").value_or(0) == 1;
  launch.host = one_host ? kLoopback : first_host(reader, {"SLURM_STEP_NODELIST", "SLURM_NODELIST"});
  launch.generation = reader.number<std::uint64_t>("SLURM_RESTART_COUNT").value_or(0);
  launch.remedy = "export MASTER_ADDR=<host of rank 0> before srun";
  const bool elsewhere = launch.rank == 0 && launch.node_rank.value_or(0) != 0;
  if (elsewhere && !one_host && launch.size > 1 && !reader.has("MASTER_ADDR")) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("Slurm placed rank 0 on node {} of the step's list, but the other ranks look for it on "
                            "the first, {}; {}",
                            *launch.node_rank, launch.host, launch.remedy));
  }
  return launch;
}

// "1145176064.0;tcp://192.0.2.2,10.0.0.2:34153;tcp6://..." -> "192.0.2.2": where mpirun runs, which starts rank 0 on
// its own host unless it is told otherwise.
std::string host_in_uri(std::string_view uri) {
  constexpr std::string_view kScheme = ";tcp://";
  const std::size_t start = uri.find(kScheme);
  if (start == std::string_view::npos) return "";
  const std::string_view addresses = uri.substr(start + kScheme.size());
  return std::string(addresses.substr(0, addresses.find_first_of(",:;")));
}

std::optional<Launch> find_open_mpi(const EnvironmentReader& reader) {
  if (!reader.has("OMPI_COMM_WORLD_RANK")) return std::nullopt;
  Launch launch{.key = "openmpi",
                .launcher = "Open MPI",
                .variables = "OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE",
                .rank = required_number(reader, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK"),
                .size = required_number(reader, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")};
  launch.local_rank = reader.number<std::uint16_t>("OMPI_COMM_WORLD_LOCAL_RANK");
  launch.local_size = reader.number<int>("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (const auto job = reader.first_of({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})) launch.job = "openmpi-" + *job;
  launch.host = launch.local_size == launch.size ? kLoopback : first_host(reader, {"SLURM_JOB_NODELIST"});
  if (launch.host.empty()) launch.host = host_in_uri(reader.text("OMPI_MCA_orte_hnp_uri").value_or(""));
  launch.remedy = "mpirun -x MASTER_ADDR=<host of rank 0>";
  return launch;
}

std::optional<Launch> find_mpich(const EnvironmentReader& reader) {
  // Slurm's and Flux's own ways to start MPI programs set these two as well, but not those of MPICH's mpiexec.
  const bool by_others = in_slurm_step(reader) || reader.has("FLUX_TASK_RANK");
  if (!reader.has("PMI_RANK") || !reader.has("PMI_SIZE")) return std::nullopt;
  if (by_others && !reader.has("MPI_LOCALNRANKS")) return std::nullopt;
  Launch launch{.key = "mpich",
                .launcher = "MPICH",
                .variables = "PMI_RANK, PMI_SIZE",
                .rank = required_number(reader, "PMI_RANK", "PMI_SIZE"),
                .size = required_number(reader, "PMI_SIZE", "PMI_RANK")};
  launch.local_rank = reader.number<std::uint16_t>("MPI_LOCALRANKID");
  launch.local_size = reader.number<int>("MPI_LOCALNRANKS");
  launch.remedy = "mpiexec -genv MASTER_ADDR <host of rank 0> -genv MASTER_PORT 29500";
  if (launch.local_size == launch.size) {
    launch.host = kLoopback;
    launch.job_fd = reader.number<int>("PMI_FD");
  } else if (in_slurm_step(reader)) {  // mpiexec's own step, which has a process on each of its hosts
    launch.host = first_host(reader, {"SLURM_JOB_NODELIST"});
    launch.job = slurm_job(reader) + "-mpich";
  }
  return launch;
}

std::optional<Launch> find_flux(const EnvironmentReader& reader) {
  if (!reader.has("FLUX_TASK_RANK")) return std::nullopt;
  Launch launch{.key = "flux",
                .launcher = "Flux",
                .variables = "FLUX_TASK_RANK, FLUX_JOB_SIZE",
                .rank = required_number(reader, "FLUX_TASK_RANK", "FLUX_TASK_RANK"),
                .size = required_number(reader, "FLUX_JOB_SIZE", "FLUX_TASK_RANK")};
  launch.local_rank = reader.number<std::uint16_t>("FLUX_TASK_LOCAL_ID");
  if (const auto job = reader.text("FLUX_JOB_ID")) launch.job = "flux-" + *job;
  if (reader.number<int>("FLUX_JOB_NNODES") == 1) launch.host = kLoopback;
  launch.remedy = "flux run sh -c 'MASTER_ADDR=$(flux hostlist --nth=0 local) exec <program>'";
  return launch;
}

// prterun without Open MPI's part does not set the number of ranks.
std::optional<Launch> find_pmix(const EnvironmentReader& reader) {
  if (!reader.has("PMIX_RANK") || reader.has("OMPI_COMM_WORLD_RANK")) return std::nullopt;
  if (in_slurm_step(reader) || reader.has("FLUX_TASK_RANK")) return std::nullopt;
  return Launch{.key = "pmix",
                .launcher = "PMIx",
                .variables = "PMIX_RANK",
                .rank = required_number(reader, "PMIX_RANK", "PMIX_RANK"),
                .job = "pmix-" + reader.text("PMIX_NAMESPACE").value_or(""),
                .remedy = "prterun --personality ompi"};
}

std::optional<Launch> find_kubernetes(const EnvironmentReader& reader) {
  if (!reader.has("JOB_COMPLETION_INDEX")) return std::nullopt;
  return Launch{.key = "kubernetes",
                .launcher = "an indexed Job of Kubernetes",
                .variables = "JOB_COMPLETION_INDEX",
                .rank = required_number(reader, "JOB_COMPLETION_INDEX", "JOB_COMPLETION_INDEX"),
                .port = 29500,  // every pod has an address of its own
                .remedy = "WORLD_SIZE (as completions) and MASTER_ADDR=<job>-0.<service> in the Job's env"};
}

}  // namespace

std::vector<Launch> find_launches(const EnvironmentReader& reader) {
  std::vector<Launch> launches;
  for (const auto find : {find_open_mpi, find_mpich, find_flux, find_slurm, find_pmix, find_kubernetes}) {
    if (auto launch = find(reader)) launches.push_back(std::move(*launch));
  }
  return launches;
}

const Launch* find_launch(std::string_view key, const std::vector<Launch>& launches) {
  const auto found = std::ranges::find(launches, key, &Launch::key);
  return found == launches.end() ? nullptr : &*found;
}

std::string to_string(const Launch& launch) {
  const std::string size = launch.size ? fmt::format("{}", *launch.size) : "an unknown number";
  return fmt::format("{} ({}) says rank {} of {}", launch.launcher, launch.variables, launch.rank, size);
}

std::uint16_t port_of_job(std::string_view job) { return static_cast<std::uint16_t>(20000 + hash_of(job) % 10000); }

}  // namespace lockstep::internal
