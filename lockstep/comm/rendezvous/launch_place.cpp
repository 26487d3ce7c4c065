#include "lockstep/comm/rendezvous/launch_place.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/rendezvous/launchers.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kAloneOnPurpose =
    "For a job on this host alone give --standalone, or set LOCKSTEP_LAUNCHER=none";

Error unclear(const std::string& text) { return Error(ErrorKind::invalid_argument, text); }

// The values that a manager sets, before it is completed.
struct Found {
  std::string source;
  std::optional<int> node_rank = {};
  std::optional<HostRange> nodes = {};
  std::string host = {};
  std::optional<int> port = {};
  std::string job = {};
  std::string remedy = {};  // for a host that is not known
};

// A worker of Ray Train, which sets these for torch: one worker is to be an agent, so there is one on each host. The
// port may be in use by Ray's own process group.
std::optional<Found> find_ray(const EnvironmentReader& reader) {
  for (const char* name : {"NODE_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"}) {
    if (!reader.has(name)) return std::nullopt;
  }
  if (reader.has_any_of({"LOCKSTEP_STORE", "GROUP_RANK"})) return std::nullopt;  // a rank of another launcher
  const int workers = *reader.number<int>("LOCAL_WORLD_SIZE");
  if (workers > 1) {
    throw unclear(
        fmt::format("Ray Train (NODE_RANK, LOCAL_WORLD_SIZE) has started {} workers on this host, and each "
                    "is a `lockstep run`. Start one per host with ScalingConfig(num_workers=<hosts>, "
                    "resources_per_worker=<all of a host>), and set the ranks per host with --nproc-per-node. {}",
                    workers, kAloneOnPurpose));
  }
  const int hosts = *reader.number<int>("WORLD_SIZE");
  const std::string address = *reader.text("MASTER_ADDR");
  const std::string job = fmt::format("ray-{}:{}", address, *reader.text("MASTER_PORT"));
  return Found{.source = "Ray Train (NODE_RANK, RANK, WORLD_SIZE)",
               .node_rank = reader.number<int>("RANK"),
               .nodes = HostRange{hosts, hosts},
               .host = address,
               .port = port_of_job(job),
               .job = job};
}

// "train-3.train.default.svc.cluster.local" -> "train-0.train.default.svc.cluster.local"
std::string first_pod(const std::string& full_name, int index) {
  const std::size_t dot = full_name.find('.');
  const std::string suffix = fmt::format("-{}", index);
  const std::string name = full_name.substr(0, dot);
  if (dot == std::string::npos || !name.ends_with(suffix)) return "";  // no headless service: pods have no names
  return name.substr(0, name.size() - suffix.size()) + "-0" + full_name.substr(dot);
}

// How many hosts the manager says the copies are on.
std::optional<int> hosts_of(const Launch& launch, const EnvironmentReader& reader) {
  if (launch.host == kLoopback) return 1;
  if (launch.key == "slurm") return reader.number<int>("SLURM_STEP_NUM_NODES");
  if (launch.key == "flux") return reader.number<int>("FLUX_JOB_NNODES");
  return std::nullopt;
}

std::string one_a_host(std::string_view key, const std::optional<int>& hosts) {
  const std::string number = hosts ? std::to_string(*hosts) : "<hosts>";
  if (key == "slurm") return "Use srun --ntasks-per-node=1";
  if (key == "flux") return fmt::format("Use flux run -N {}", number);
  if (key == "openmpi") return "Use mpirun --map-by ppr:1:node";
  if (key == "mpich") return "Use mpiexec.hydra -ppn 1";
  return "Start one copy on each host";
}

void expect_one_a_host(const Launch& launch, const EnvironmentReader& reader) {
  const int size = launch.size.value_or(1);
  const std::optional<int> hosts = hosts_of(launch, reader);
  if (launch.local_size.value_or(1) <= 1 && size <= hosts.value_or(size)) return;
  const std::string where = hosts ? fmt::format("{} host{}", *hosts, *hosts == 1 ? "" : "s") : "fewer hosts";
  throw unclear(fmt::format(
      "{} ({}) has started {} copies of `lockstep run` on {}, but one starts all ranks of a "
      "host. {}, and set the ranks per host with --nproc-per-node; or let {} start the program "
      "itself. {}",
      launch.launcher, launch.variables, size, where, one_a_host(launch.key, hosts), launch.launcher, kAloneOnPurpose));
}

Found from_launch(const Launch& launch, const EnvironmentReader& reader, const GivenPlace& given) {
  expect_one_a_host(launch, reader);
  Found found{.source = fmt::format("{} ({})", launch.launcher, launch.variables),
              .node_rank = launch.rank,
              .host = reader.text("MASTER_ADDR").value_or(launch.host),
              .job = launch.job,
              .remedy = std::string(launch.remedy)};
  if (launch.size) found.nodes = HostRange{*launch.size, *launch.size};
  if (launch.port != 0) found.port = launch.port;
  if (!found.job.empty()) found.port = port_of_job(launch.job);
  if (launch.generation > 0) found.job += fmt::format("-{}", launch.generation);
  if (launch.key == "kubernetes") {
    if (found.host.empty()) found.host = first_pod(given.full_name, launch.rank);
    found.job = "kubernetes-" + found.host;
  }
  if (const auto port = reader.number<std::uint16_t>("MASTER_PORT")) found.port = *port;
  return found;
}

const Launch& launch_named(std::string_view name, const std::vector<Launch>& launches) {
  if (const Launch* found = find_launch(name, launches)) return *found;
  throw unclear(fmt::format(
      "LOCKSTEP_LAUNCHER is {}, but the variables of that launcher are missing: it has not started `lockstep run`. {}",
      name, kAloneOnPurpose));
}

// The nearest launcher's variables may be left over, and a copy alone on each of several hosts would be an accident.
void expect_agreement(const Launch& nearest, const std::vector<Launch>& launches) {
  for (const Launch& launch : launches) {
    if (nearest.size != 1 || launch.size.value_or(launch.rank + 1) <= 1) continue;
    throw unclear(
        fmt::format("{}, so `lockstep run` would be alone, but {}. Set LOCKSTEP_LAUNCHER={} to use that launcher, or "
                    "LOCKSTEP_LAUNCHER={} if each is to be a separate job",
                    to_string(nearest), to_string(launch), launch.key, nearest.key));
  }
}

// `wanted`: LOCKSTEP_LAUNCHER.
std::optional<Found> find(const EnvironmentReader& reader, std::string_view wanted, const GivenPlace& given) {
  if (wanted.empty() || wanted == "env") {
    auto ray = find_ray(reader);
    if (ray || !wanted.empty()) return ray;
  }
  const std::vector<Launch> launches = find_launches(reader);
  if (wanted.empty() && launches.empty()) return std::nullopt;
  const Launch& launch = wanted.empty() ? launches.front() : launch_named(wanted, launches);
  if (wanted.empty()) expect_agreement(launch, launches);
  if (launch.size == 1) return std::nullopt;
  return from_launch(launch, reader, given);
}

std::string endpoint_of(const Found& found) {
  if (found.host.empty() || !found.port) {
    throw unclear(
        fmt::format("{} has started `lockstep run` on several hosts, but does not say {}. Give "
                    "--rdzv-endpoint <name of the first host>:<free port>{}",
                    found.source, found.host.empty() ? "which host is the first" : "which port to use",
                    found.remedy.empty() ? "" : ", or " + found.remedy));
  }
  const bool ipv6 = found.host.find(':') != std::string::npos && !found.host.starts_with('[');
  return fmt::format("{}{}{}:{}", ipv6 ? "[" : "", found.host, ipv6 ? "]" : "", *found.port);
}

}  // namespace

std::optional<LaunchPlace> find_launch_place(const EnvironmentReader& reader, const GivenPlace& given) {
  if (given.nodes && (given.nodes->most == 1 || !given.endpoint.empty())) return std::nullopt;
  const std::string_view wanted = reader.choice("LOCKSTEP_LAUNCHER").value_or("");
  if (wanted == "none" || reader.has("LOCKSTEP_STORE")) return std::nullopt;
  const std::optional<Found> found = find(reader, wanted, given);
  if (!found) return std::nullopt;
  LaunchPlace place{.source = found->source, .node_rank = given.node_rank, .endpoint = given.endpoint};
  if (given.nodes) {
    place.nodes = *given.nodes;
  } else if (found->nodes) {
    place.nodes = *found->nodes;
  } else {
    throw unclear(
        fmt::format("{} has started `lockstep run` as one of several hosts, but does not say how many there "
                    "are; give --nnodes. {}",
                    found->source, kAloneOnPurpose));
  }
  if (place.nodes.most == 1) return std::nullopt;
  // The numbers of hosts that come and go are given out where they meet.
  if (!place.node_rank && place.nodes.least == place.nodes.most) place.node_rank = found->node_rank;
  if (place.endpoint.empty()) place.endpoint = endpoint_of(*found);
  place.rdzv_id = given.rdzv_id.empty() ? found->job : given.rdzv_id;
  return place;
}

}  // namespace lockstep::internal
