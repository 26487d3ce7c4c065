// The environments are as the launchers made them: Slurm 22.05, Open MPI 4.1.4, MPICH 4.0.2, and as Flux's and
// Kubernetes's documentation has them.
#include "lockstep/comm/rendezvous/launchers.h"

#include <map>

#include "lockstep/comm/rendezvous/join_plan.h"
#include "tests/support/expect_error.h"
#include "tests/unit/rendezvous/planned.h"

namespace launchers_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

Variables operator+(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

Variables operator-(Variables base, const std::string& name) {
  REQUIRE(base.erase(name) == 1);
  return base;
}

// Task 3 of "srun -N2 -n4", on the second node.
const Variables kSrun{{"SLURM_JOB_ID", "17"},
                      {"SLURM_STEP_ID", "2"},
                      {"SLURM_PROCID", "3"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_NTASKS", "4"},
                      {"SLURM_STEP_NUM_TASKS", "4"},
                      {"SLURM_STEP_NUM_NODES", "2"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                      {"SLURM_STEP_NODELIST", "n[1-2]"},
                      {"SLURM_NODELIST", "n[1-2]"},
                      {"SLURM_JOB_NODELIST", "n[1-2]"},
                      {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"}};
// The script of "sbatch -N2 -n4"; the shell of "salloc -N2 -n4" lacks SLURM_PROCID and SLURM_NODEID.
const Variables kBatch{{"SLURM_JOB_ID", "17"}, {"SLURM_PROCID", "0"},           {"SLURM_LOCALID", "0"},
                       {"SLURM_NODEID", "0"},  {"SLURM_NTASKS", "4"},           {"SLURM_NODELIST", "n[1-2]"},
                       {"SLURM_NPROCS", "4"},  {"SLURM_JOB_NODELIST", "n[1-2]"}};
// Rank 1 of "mpirun -n 2" on one host.
const Variables kMpirun{{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"OMPI_COMM_WORLD_NODE_RANK", "1"},
                        {"OMPI_MCA_orte_hnp_uri", "1145176064.0;tcp://192.0.2.2,10.0.0.2:34153;tcp6://[fd00::2]:40775"},
                        {"PMIX_RANK", "1"},
                        {"PMIX_NAMESPACE", "1145176065"}};
const Variables kMpirunOnTwoHosts =
    kMpirun + Variables{{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
// Rank 1 of "mpiexec.hydra -n 2" on one host.
const Variables kHydra{
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_FD", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kFlux{{"FLUX_TASK_RANK", "3"},  {"FLUX_JOB_SIZE", "4"},  {"FLUX_TASK_LOCAL_ID", "1"},
                      {"FLUX_JOB_NNODES", "2"}, {"FLUX_JOB_ID", "f2Rw"}, {"PMI_RANK", "3"},
                      {"PMI_SIZE", "4"},        {"PMI_FD", "12"}};
const Variables kIndexedJob{{"JOB_COMPLETION_INDEX", "3"}, {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};

}  // namespace

// feature: J-08
TEST_CASE("a step of Slurm: ranks, places, and a store on the first host at a port of the step's own") {
  const JoinPlan srun = plan(kSrun);
  CHECK(srun.rendezvous == Meeting::rank_zero);
  CHECK(srun.rank == 3);
  CHECK(srun.size == 4);
  CHECK(srun.local_rank == 1);
  CHECK(srun.local_size == 2);
  CHECK(srun.node_rank == 1);
  CHECK(srun.endpoint.host == "n1");
  CHECK(srun.job_id == "slurm-17.2");
  CHECK(srun.launched);
  CHECK(srun.source == "Slurm (SLURM_PROCID, SLURM_STEP_NUM_TASKS)");
  CHECK(srun.endpoint.port == port_of_job("slurm-17.2"));
  CHECK(plan(kSrun + Variables{{"SLURM_STEP_ID", "3"}}).endpoint.port != srun.endpoint.port);
  CHECK(plan(kSrun + Variables{{"SLURM_RESTART_COUNT", "2"}}).generation == 2);
  CHECK(plan(kSrun + Variables{{"SLURM_STEP_NUM_NODES", "1"}}).endpoint.host == "127.0.0.1");
  CHECK(plan(kSrun - "SLURM_STEP_NUM_TASKS").size == 4);
}

TEST_CASE("ports of jobs are between those of services and those that the kernel gives away") {
  for (int job = 0; job < 1000; ++job) {
    const int port = port_of_job("slurm-" + std::to_string(job) + ".0");
    CHECK(port >= 20000);
    CHECK(port < 30000);
  }
}

TEST_CASE("MASTER_ADDR and MASTER_PORT go before what the launcher's variables tell") {
  for (const Variables& launcher : {kSrun, kMpirun, kHydra, kFlux}) {
    const JoinPlan both = plan(launcher + Variables{{"MASTER_ADDR", "10.0.0.5"}, {"MASTER_PORT", "29500"}});
    CHECK(both.endpoint == Endpoint{"10.0.0.5", 29500});
    CHECK(!both.job_fd);
    CHECK_ERROR(plan_error(launcher + Variables{{"MASTER_PORT", "0"}}), ErrorKind::invalid_argument,
                "MASTER_PORT is 0");
  }
  CHECK(plan(kSrun + Variables{{"MASTER_ADDR", "10.0.0.5"}}).endpoint ==
        Endpoint{"10.0.0.5", plan(kSrun).endpoint.port});
  CHECK(plan(kSrun + Variables{{"MASTER_PORT", "29500"}}).endpoint == Endpoint{"n1", 29500});
}

TEST_CASE("the script of sbatch and the shell of salloc are no steps: a world of one, with a hint") {
  for (const Variables& variables :
       {kBatch, kBatch - "SLURM_PROCID", kBatch + Variables{{"SLURM_STEP_ID", "4294967290"}},
        kBatch + Variables{{"SLURM_STEP_ID", "4294967291"}}}) {
    const JoinPlan alone = plan(variables);
    CHECK(alone.rendezvous == Meeting::alone);
    CHECK(alone.size == 1);
    CHECK(contains(alone.advice, "Slurm job with 4 tasks"));
    CHECK(contains(alone.advice, "srun"));
  }
  CHECK(plan(kBatch + Variables{{"SLURM_NTASKS", "1"}}).advice.empty());
}

TEST_CASE("srun -n 1 is a world of one on purpose") {
  const JoinPlan one = plan(kSrun + Variables{{"SLURM_PROCID", "0"},
                                              {"SLURM_LOCALID", "0"},
                                              {"SLURM_STEP_NUM_TASKS", "1"},
                                              {"SLURM_STEP_TASKS_PER_NODE", "1"}});
  CHECK(one.rendezvous == Meeting::alone);
  CHECK(one.source.starts_with("Slurm"));
  CHECK(one.advice.empty());
}

TEST_CASE("rank 0 on another node than the first of the list is refused, not waited for") {
  const Variables shuffled = kSrun + Variables{{"SLURM_PROCID", "0"}};
  CHECK_ERROR(plan_error(shuffled), ErrorKind::invalid_argument, "node 1", "n1", "MASTER_ADDR");
  CHECK(plan(shuffled + Variables{{"MASTER_ADDR", "n2"}}).endpoint.host == "n2");
}

// feature: Z-21, J-07
TEST_CASE("a list of hosts that cannot be read is an error, never localhost") {
  CHECK_ERROR(plan_error(kSrun + Variables{{"SLURM_STEP_NODELIST", "n[1-"}}), ErrorKind::invalid_argument, "n[1-");
  const Variables none = kSrun - "SLURM_STEP_NODELIST" - "SLURM_NODELIST";
  CHECK_ERROR(plan_error(none), ErrorKind::invalid_argument, "lacks MASTER_ADDR", "srun");
}

TEST_CASE("Open MPI: one host by itself, several by mpirun's own address or Slurm's list") {
  const JoinPlan mpirun = plan(kMpirun);
  CHECK(mpirun.rank == 1);
  CHECK(mpirun.size == 2);
  CHECK(mpirun.local_rank == 1);
  CHECK(!mpirun.node_rank);  // OMPI_COMM_WORLD_NODE_RANK is a rank on the node
  CHECK(mpirun.endpoint == Endpoint{"127.0.0.1", port_of_job("openmpi-1145176065")});
  CHECK(mpirun.job_id == "openmpi-1145176065");
  CHECK(plan(kMpirunOnTwoHosts).endpoint.host == "192.0.2.2");
  CHECK(plan(kMpirunOnTwoHosts + Variables{{"SLURM_JOB_NODELIST", "n[1-2]"}}).endpoint.host == "n1");
  // Open MPI 5 does not say where mpirun is.
  CHECK_ERROR(plan_error(kMpirunOnTwoHosts - "OMPI_MCA_orte_hnp_uri"), ErrorKind::invalid_argument,
              "Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE) says rank 1 of 2", "lacks MASTER_ADDR",
              "mpirun -x MASTER_ADDR");
}

TEST_CASE("mpirun within a Slurm job: its daemons are the tasks of the step, its ranks are what counts") {
  const Variables daemon = kSrun + Variables{{"SLURM_PROCID", "0"},
                                             {"SLURM_NODEID", "0"},
                                             {"SLURM_STEP_NUM_TASKS", "1"},
                                             {"SLURM_STEP_NUM_NODES", "1"}};
  CHECK(plan(daemon + kMpirun).rank == 1);
  CHECK(plan(daemon + kMpirun).job_id == "openmpi-1145176065");
  const JoinPlan hydra = plan(kSrun + kHydra);
  CHECK(hydra.rank == 1);
  CHECK(hydra.job_fd == 8);
  const JoinPlan spread = plan(kSrun + kHydra + Variables{{"MPI_LOCALNRANKS", "1"}, {"MPI_LOCALRANKID", "0"}});
  CHECK(spread.endpoint.host == "n1");
  CHECK(spread.job_id == "slurm-17.2-mpich");
  CHECK(!spread.job_fd);
}

TEST_CASE("srun --mpi=pmi2 sets MPICH's variables too, and is Slurm") {
  const JoinPlan pmi2 = plan(kSrun + Variables{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_FD", "11"}});
  CHECK(pmi2.source.starts_with("Slurm"));
  CHECK(pmi2.endpoint.host == "n1");
}

TEST_CASE("MPICH: one host by its launcher's process, several need to be told") {
  const JoinPlan hydra = plan(kHydra);
  CHECK(hydra.rank == 1);
  CHECK(hydra.size == 2);
  CHECK(hydra.endpoint.host == "127.0.0.1");
  CHECK(hydra.job_fd == 8);
  CHECK_ERROR(plan_error(kHydra + Variables{{"MPI_LOCALNRANKS", "1"}, {"MPI_LOCALRANKID", "0"}}),
              ErrorKind::invalid_argument, "MPICH (PMI_RANK, PMI_SIZE) says rank 1 of 2",
              "lacks MASTER_ADDR, MASTER_PORT", "-genv MASTER_ADDR");
  CHECK_ERROR(plan_error(kHydra - "PMI_FD"), ErrorKind::invalid_argument, "lacks MASTER_PORT");
}

TEST_CASE("Flux: one host by itself, several need rank 0's") {
  CHECK_ERROR(plan_error(kFlux), ErrorKind::invalid_argument, "Flux (FLUX_TASK_RANK, FLUX_JOB_SIZE) says rank 3 of 4",
              "lacks MASTER_ADDR", "flux hostlist --nth=0 local");
  const JoinPlan one_host = plan(kFlux + Variables{{"FLUX_JOB_NNODES", "1"}});
  CHECK(one_host.rank == 3);
  CHECK(one_host.local_rank == 1);
  CHECK(one_host.endpoint == Endpoint{"127.0.0.1", port_of_job("flux-f2Rw")});
  CHECK(plan(kFlux + Variables{{"MASTER_ADDR", "corona1"}}).endpoint.host == "corona1");
}

TEST_CASE("an indexed Job of Kubernetes says its rank alone") {
  CHECK_ERROR(plan_error(kIndexedJob), ErrorKind::invalid_argument, "JOB_COMPLETION_INDEX",
              "lacks WORLD_SIZE, MASTER_ADDR", "completions", "LOCKSTEP_LAUNCHER=none");
  const JoinPlan job = plan(kIndexedJob + Variables{{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "train-0.train"}});
  CHECK(job.rank == 3);
  CHECK(job.size == 4);
  CHECK(job.endpoint == Endpoint{"train-0.train", 29500});
  CHECK_ERROR(plan_error(kIndexedJob + Variables{{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "train-0.train"}}),
              ErrorKind::invalid_argument, "rank 3 is outside");
  // PyTorchJob and the like say all four.
  const JoinPlan told =
      plan(kIndexedJob + Variables{{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}});
  CHECK(told.endpoint == Endpoint{"a", 1});
}

TEST_CASE("prterun alone does not say how many there are") {
  const Variables prterun{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prterun-n1-9@1"}};
  CHECK_ERROR(plan_error(prterun), ErrorKind::invalid_argument, "PMIX_RANK", "WORLD_SIZE", "--personality ompi");
}

TEST_CASE("half of what a launcher sets is an error that names the other half") {
  CHECK_ERROR(plan_error(kMpirun - "OMPI_COMM_WORLD_SIZE"), ErrorKind::invalid_argument, "OMPI_COMM_WORLD_SIZE is not");
  CHECK_ERROR(plan_error(kFlux - "FLUX_JOB_SIZE"), ErrorKind::invalid_argument, "FLUX_JOB_SIZE is not");
  CHECK_ERROR(plan_error({{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}}), ErrorKind::invalid_argument,
              "SLURM_STEP_ID is not");
  CHECK_ERROR(plan_error(kSrun + Variables{{"SLURM_PROCID", "x"}}), ErrorKind::invalid_argument, "SLURM_PROCID is 'x'");
}

TEST_CASE("RANK goes before a launcher that agrees, and is an error where it does not") {
  const Variables by_hand{{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}};
  CHECK(plan(kSrun + by_hand).endpoint == Endpoint{"a", 29500});
  const Variables other = kSrun + by_hand + Variables{{"RANK", "2"}};
  CHECK_ERROR(plan_error(other), ErrorKind::invalid_argument, "RANK and WORLD_SIZE say rank 2 of 4",
              "Slurm (SLURM_PROCID, SLURM_STEP_NUM_TASKS) says rank 3 of 4", "LOCKSTEP_LAUNCHER=env");
  CHECK(plan(other + Variables{{"LOCKSTEP_LAUNCHER", "env"}}).rank == 2);
  CHECK(plan(other + Variables{{"LOCKSTEP_LAUNCHER", "slurm"}, {"MASTER_ADDR", ""}}).rank == 3);
  // torchrun as a task of Slurm is the nearer launcher.
  CHECK(plan(other + Variables{{"LOCAL_RANK", "0"}}).rank == 2);
  CHECK(plan(kSrun + Variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCKSTEP_STORE", "127.0.0.1:1"}}).size == 2);
  CHECK_ERROR(plan_error(kSrun + Variables{{"WORLD_SIZE", "8"}}), ErrorKind::invalid_argument, "WORLD_SIZE is 8",
              "rank 3 of 4");
}

TEST_CASE("a world of one within a launcher's several is refused, unless it is said") {
  const Variables left_over{{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  for (const Variables& launcher : {kSrun, kMpirun, kHydra, kFlux, kIndexedJob}) {
    CHECK_ERROR(plan_error(launcher + left_over), ErrorKind::invalid_argument, "this process is a world of one",
                "LOCKSTEP_LAUNCHER=none");
    const JoinPlan alone = plan(launcher + left_over + Variables{{"LOCKSTEP_LAUNCHER", "none"}});
    CHECK(alone.rendezvous == Meeting::alone);
    CHECK(alone.rank == 0);
    CHECK(alone.source == "LOCKSTEP_LAUNCHER=none");
  }
  // Each task of Slurm with an mpirun of its own, or tasks that inherit what one mpirun has set.
  CHECK_ERROR(plan_error(kSrun + kMpirun +
                         Variables{{"OMPI_COMM_WORLD_RANK", "0"},
                                   {"OMPI_COMM_WORLD_SIZE", "1"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}),
              ErrorKind::invalid_argument, "Open MPI", "Slurm", "rank 3 of 4", "LOCKSTEP_LAUNCHER=slurm");
}

TEST_CASE("LOCKSTEP_LAUNCHER can be one of those that apply") {
  CHECK(plan(kSrun + kMpirun + Variables{{"LOCKSTEP_LAUNCHER", "Slurm"}}).rank == 3);
  CHECK_ERROR(plan_error(kMpirun + Variables{{"LOCKSTEP_LAUNCHER", "slurm"}}), ErrorKind::invalid_argument,
              "LOCKSTEP_LAUNCHER is slurm");
  CHECK_ERROR(plan_error({{"LOCKSTEP_LAUNCHER", "pbs"}}), ErrorKind::invalid_argument, "LOCKSTEP_LAUNCHER is 'pbs'",
              "none, env, slurm, openmpi, mpich, flux, pmix or kubernetes");
}

TEST_CASE("a URL takes rank and world size from the launcher as well") {
  JoinOptions options;
  options.init_method = "tcp://n7:29500";
  CHECK(plan(kSrun, options).rank == 3);
  CHECK(plan(kSrun, options).endpoint == Endpoint{"n7", 29500});
  options.init_method = "file:///shared/meet";
  CHECK(plan(kMpirun, options).size == 2);
}

TEST_CASE("a library that started the ranks is asked where no variable says RANK") {
  JoinOptions options;
  options.bootstrap = [] { return Bootstrap{}; };
  CHECK(plan({}, options).rendezvous == Meeting::bootstrap);
  CHECK(plan(kMpirun, options).expected_size == 2);
  CHECK(plan(kMpirun, options).endpoint.host == "127.0.0.1");
  CHECK(plan({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}, options).rendezvous ==
        Meeting::rank_zero);
  CHECK(plan({{"LOCKSTEP_LAUNCHER", "none"}}, options).rendezvous == Meeting::alone);
  options.rank = 0;
  options.world_size = 1;
  CHECK(plan({}, options).rendezvous == Meeting::alone);
}

// feature: J-05
TEST_CASE("a process takes the GPU of its local rank, and without one that of its rank") {
  const auto with = [](const char* value) {
    return [value](const char* name) { return std::string(name) == "LOCAL_RANK" ? value : nullptr; };
  };
  CHECK(local_device(9, 4, with("2")) == 2);
  CHECK(local_device(1, 2, with("5")) == 1);
  CHECK(local_device(9, 4, with("0")) == 0);
  CHECK(local_device(3, 8, with(nullptr)) == 3);
  CHECK(local_device(9, 8, with(nullptr)) == 1);
  Variables variables{
      {"OMPI_COMM_WORLD_RANK", "6"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}};
  const auto behind_mpirun = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  CHECK(local_device(0, 4, behind_mpirun) == 2);
  variables.insert({{"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"}});
  variables["LOCKSTEP_LAUNCHER"] = "slurm";
  CHECK(local_device(0, 4, behind_mpirun) == 1);
  variables["LOCKSTEP_LAUNCHER"] = "none";  // several worlds of one on a host
  CHECK(local_device(0, 4, behind_mpirun) != 0);
  variables["LOCKSTEP_LAUNCHER"] = "env";
  CHECK(local_device(3, 4, behind_mpirun) == 3);
  variables["LOCKSTEP_LAUNCHER"] = "slurm";
  variables["SLURM_LOCALID"] = "-1";
  CHECK_ERROR(error_of([&] { local_device(0, 4, behind_mpirun); }), ErrorKind::invalid_argument,
              "SLURM_LOCALID is '-1'");
  CHECK_ERROR(error_of([&] { local_device(1, 2, with("-1")); }), ErrorKind::invalid_argument, "LOCAL_RANK is '-1'");
  CHECK_ERROR(error_of([&] { local_device(1, 0, with("0")); }), ErrorKind::invalid_argument, "rank 1 needs a GPU");
}

}  // namespace launchers_test
