// The environments are as the managers made them: Slurm 22.05, Open MPI 4.1.4, MPICH 4.0.2, and as the documentation of
// Flux, Kubernetes and Ray has them. tests/unit/rendezvous/launchers_test.cpp has those of ranks.
#include "lockstep/comm/rendezvous/launch_place.h"

#include <map>
#include <string>

#include "lockstep/comm/rendezvous/launchers.h"
#include "tests/support/expect_error.h"

namespace launch_place_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

using Variables = std::map<std::string, std::string>;

Variables operator+(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

std::optional<LaunchPlace> place(const Variables& variables, const GivenPlace& given = {}) {
  return find_launch_place(EnvironmentReader([&](const char* name) {
                             const auto found = variables.find(name);
                             return found == variables.end() ? nullptr : found->second.c_str();
                           }),
                           given);
}

Error place_error(const Variables& variables, const GivenPlace& given = {}) {
  return error_of([&] { place(variables, given); });
}

// The second of "srun -N2 --ntasks-per-node=1".
const Variables kSrun{{"SLURM_JOB_ID", "17"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_PROCID", "1"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_STEP_NUM_TASKS", "2"},
                      {"SLURM_STEP_NUM_NODES", "2"},
                      {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                      {"SLURM_STEP_NODELIST", "n[1-2]"},
                      {"SLURM_NODELIST", "n[1-2]"}};
const Variables kMpirun{{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                        {"OMPI_MCA_orte_hnp_uri", "1145176064.0;tcp://192.0.2.2,10.0.0.2:34153;tcp6://[fd00::2]:40775"},
                        {"PMIX_RANK", "1"},
                        {"PMIX_NAMESPACE", "1145176065"}};
const Variables kHydra{
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_FD", "8"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}};
const Variables kFlux{{"FLUX_TASK_RANK", "1"},
                      {"FLUX_JOB_SIZE", "2"},
                      {"FLUX_TASK_LOCAL_ID", "0"},
                      {"FLUX_JOB_NNODES", "2"},
                      {"FLUX_JOB_ID", "f2Rw"}};
const Variables kIndexedJob{{"JOB_COMPLETION_INDEX", "3"}, {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};
const Variables kRay{
    {"RANK", "1"},      {"LOCAL_RANK", "0"},         {"WORLD_SIZE", "2"},     {"LOCAL_WORLD_SIZE", "1"},
    {"NODE_RANK", "1"}, {"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "43127"}};

}  // namespace

// feature: J-08
TEST_CASE("one task a node of Slurm is a host of the job") {
  const auto found = place(kSrun);
  REQUIRE(found.has_value());
  CHECK(found->nodes.least == 2);
  CHECK(found->nodes.most == 2);
  CHECK(found->node_rank == 1);
  CHECK(found->endpoint == "n1:" + std::to_string(port_of_job("slurm-17.0")));
  CHECK(found->rdzv_id == "slurm-17.0");
  CHECK(found->source == "Slurm (SLURM_PROCID, SLURM_STEP_NUM_TASKS)");
}

TEST_CASE("a requeued job of Slurm is another job") {
  const auto found = place(kSrun + Variables{{"SLURM_RESTART_COUNT", "2"}});
  CHECK(found->rdzv_id == "slurm-17.0-2");
  CHECK(found->endpoint == place(kSrun)->endpoint);
}

TEST_CASE("several copies on one node are refused, with what starts one") {
  const Variables four = kSrun + Variables{{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};
  CHECK_ERROR(place_error(four), ErrorKind::invalid_argument, "Slurm (SLURM_PROCID, SLURM_STEP_NUM_TASKS)",
              "started 4 copies of `lockstep run` on 2 hosts", "srun --ntasks-per-node=1", "--nproc-per-node",
              "--standalone");
  // Of three tasks on two nodes, the one that is alone on its node says so, too.
  const Variables three = kSrun + Variables{{"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_STEP_TASKS_PER_NODE", "2,1"}};
  CHECK_ERROR(place_error(three), ErrorKind::invalid_argument, "started 3 copies");
  CHECK_ERROR(place_error(kMpirun + Variables{{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}), ErrorKind::invalid_argument,
              "on 1 host,", "ppr:1:node");
  CHECK_ERROR(place_error(kHydra + Variables{{"MPI_LOCALNRANKS", "2"}}), ErrorKind::invalid_argument, "-ppn 1");
  CHECK_ERROR(place_error(kFlux + Variables{{"FLUX_JOB_SIZE", "4"}}), ErrorKind::invalid_argument, "flux run -N 2");
  CHECK_ERROR(place_error(kRay + Variables{{"LOCAL_WORLD_SIZE", "2"}}), ErrorKind::invalid_argument, "Ray Train",
              "2 workers on this host", "ScalingConfig");
}

TEST_CASE("a single task is a job of this host alone, as is a script of sbatch") {
  const Variables one{{"SLURM_PROCID", "0"},
                      {"SLURM_NODEID", "0"},
                      {"SLURM_STEP_NUM_TASKS", "1"},
                      {"SLURM_STEP_NUM_NODES", "1"},
                      {"SLURM_STEP_TASKS_PER_NODE", "1"}};
  CHECK_FALSE(place(kSrun + one).has_value());
  CHECK_FALSE(place({{"SLURM_JOB_ID", "17"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}).has_value());
  CHECK_FALSE(place({}).has_value());
}

TEST_CASE("a launcher within a rank, and one that is told so, is alone") {
  CHECK_FALSE(place(kSrun + Variables{{"LOCKSTEP_STORE", "127.0.0.1:4711"}}).has_value());
  CHECK_FALSE(place(kSrun + Variables{{"LOCKSTEP_LAUNCHER", "none"}}).has_value());
  CHECK_FALSE(place(kSrun, {.nodes = HostRange{1, 1}}).has_value());
  CHECK_FALSE(place({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}}).has_value());
}

TEST_CASE("what is left over of another launcher is no world of one") {
  const Variables left_over{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}};
  CHECK_ERROR(place_error(kSrun + left_over), ErrorKind::invalid_argument, "Open MPI", "rank 0 of 1", "Slurm",
              "rank 1 of 2", "LOCKSTEP_LAUNCHER=slurm", "LOCKSTEP_LAUNCHER=openmpi");
  const auto found = place(kSrun + left_over + Variables{{"LOCKSTEP_LAUNCHER", "slurm"}});
  REQUIRE(found.has_value());
  CHECK(found->nodes.most == 2);
  CHECK(found->endpoint.starts_with("n1:"));
  CHECK_FALSE(place(kSrun + left_over + Variables{{"LOCKSTEP_LAUNCHER", "openmpi"}}).has_value());
  CHECK_FALSE(place(kSrun + left_over, {.nodes = HostRange{1, 1}}).has_value());
}

TEST_CASE("the launcher that is named decides") {
  CHECK(place(kSrun + kMpirun + Variables{{"LOCKSTEP_LAUNCHER", "slurm"}})->rdzv_id == "slurm-17.0");
  CHECK(place(kSrun + kRay + Variables{{"LOCKSTEP_LAUNCHER", "slurm"}})->rdzv_id == "slurm-17.0");
  CHECK(place(kSrun + kRay + Variables{{"LOCKSTEP_LAUNCHER", "env"}})->rdzv_id == "ray-10.0.0.7:43127");
  CHECK_FALSE(place(kSrun + Variables{{"LOCKSTEP_LAUNCHER", "env"}}).has_value());
  CHECK_ERROR(place_error(kMpirun + Variables{{"LOCKSTEP_LAUNCHER", "slurm"}}), ErrorKind::invalid_argument,
              "LOCKSTEP_LAUNCHER is slurm", "variables of that launcher are missing", "--standalone");
}

TEST_CASE("what is given goes first") {
  const auto found = place(kSrun, {.node_rank = 0, .endpoint = "login:29400", .rdzv_id = "mine"});
  REQUIRE(found.has_value());
  CHECK(found->node_rank == 0);
  CHECK(found->endpoint == "login:29400");
  CHECK(found->rdzv_id == "mine");
  CHECK(found->nodes.most == 2);
  CHECK(place(kSrun + Variables{{"MASTER_ADDR", "n9"}, {"MASTER_PORT", "29500"}})->endpoint == "n9:29500");
  // Whoever says how many and where needs no manager, and may start several on one host.
  const Variables four = kSrun + Variables{{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};
  CHECK_FALSE(place(four, {.nodes = HostRange{4, 4}, .endpoint = "n1:29400"}).has_value());
}

TEST_CASE("hosts that come and go are numbered where they meet") {
  const auto found = place(kSrun, {.nodes = HostRange{1, 2}});
  CHECK(found->nodes.least == 1);
  CHECK_FALSE(found->node_rank.has_value());
}

TEST_CASE("one process a host of Open MPI, MPICH and Flux") {
  const auto open_mpi = place(kMpirun);
  CHECK(open_mpi->node_rank == 1);
  CHECK(open_mpi->endpoint == "192.0.2.2:" + std::to_string(port_of_job("openmpi-1145176065")));
  CHECK(open_mpi->rdzv_id == "openmpi-1145176065");
  CHECK_ERROR(place_error(kHydra), ErrorKind::invalid_argument, "does not say which host is the first",
              "--rdzv-endpoint", "-genv MASTER_ADDR");
  const auto hydra = place(kHydra + Variables{{"MASTER_ADDR", "h1"}, {"MASTER_PORT", "29500"}});
  CHECK(hydra->endpoint == "h1:29500");
  CHECK_ERROR(place_error(kHydra + Variables{{"MASTER_ADDR", "h1"}}), ErrorKind::invalid_argument, "which port");
  CHECK_ERROR(place_error(kFlux), ErrorKind::invalid_argument, "flux hostlist");
  const auto flux = place(kFlux + Variables{{"MASTER_ADDR", "fd00::7"}});
  CHECK(flux->endpoint == "[fd00::7]:" + std::to_string(port_of_job("flux-f2Rw")));
}

TEST_CASE("MPI within a Slurm job: the copies are mpirun's") {
  CHECK(place(kSrun + kMpirun)->rdzv_id == "openmpi-1145176065");
  const Variables in_job{{"SLURM_JOB_NODELIST", "n[1-2]"}};
  CHECK(place(kSrun + kHydra + in_job)->endpoint.starts_with("n1:"));
}

TEST_CASE("pods of an indexed Job or JobSet find the first by their own name") {
  CHECK_ERROR(place_error(kIndexedJob), ErrorKind::invalid_argument, "--nnodes");
  const GivenPlace given{.nodes = HostRange{4, 4}, .full_name = "train-3.train.default.svc.cluster.local"};
  const auto found = place(kIndexedJob, given);
  CHECK(found->node_rank == 3);
  CHECK(found->endpoint == "train-0.train.default.svc.cluster.local:29500");
  CHECK(found->rdzv_id == "kubernetes-train-0.train.default.svc.cluster.local");
  const GivenPlace set{.nodes = HostRange{4, 4}, .full_name = "train-hosts-0-3.train.ns.svc.cluster.local"};
  CHECK(place(kIndexedJob, set)->endpoint == "train-hosts-0-0.train.ns.svc.cluster.local:29500");
  CHECK_ERROR(place_error(kIndexedJob, {.nodes = HostRange{4, 4}, .full_name = "train-3"}), ErrorKind::invalid_argument,
              "which host is the first", "MASTER_ADDR=<job>-0.<service>");
}

TEST_CASE("one worker a host of Ray Train") {
  const auto found = place(kRay);
  CHECK(found->node_rank == 1);
  CHECK(found->nodes.most == 2);
  CHECK(found->rdzv_id == "ray-10.0.0.7:43127");
  CHECK(found->endpoint == "10.0.0.7:" + std::to_string(port_of_job("ray-10.0.0.7:43127")));  // Ray's port is in use
}

}  // namespace launch_place_test
