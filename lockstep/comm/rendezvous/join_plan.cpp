#include "lockstep/comm/rendezvous/join_plan.h"

#include <algorithm>
#include <climits>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/rendezvous/handlers.h"
#include "lockstep/comm/rendezvous/launchers.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kSwitch = "LOCKSTEP_LAUNCHER";
constexpr std::uint16_t kFirstEphemeralPort = 32768;  // Linux assigns those from here on to any process
constexpr std::string_view kNone = "none", kEnv = "env";

Error invalid(const std::string& text) { return Error(ErrorKind::invalid_argument, text); }

// The one value that argument and URL give, if any; both is an error.
std::optional<int> argument_or_url(const std::optional<int>& argument, const Url& url, const char* name) {
  const auto found = url.query.find(name);
  if (found == url.query.end()) return argument;
  if (argument) {
    throw invalid(fmt::format("{} is given twice, as {} in init_method and as {} in the arguments; give it once", name,
                              found->second, *argument));
  }
  if (found->second.empty()) return std::nullopt;
  return static_cast<int>(parse_integer(fmt::format("{} in init_method", name), found->second, INT_MIN, INT_MAX));
}

void check_numbers(const JoinPlan& plan) {
  if (plan.size < 1) throw invalid(fmt::format("the world size is {}; it must be at least 1", plan.size));
  if (plan.rank < 0 || plan.rank >= plan.size) {
    throw invalid(fmt::format("rank {} is outside the legal interval [0, {}] of world size {}", plan.rank,
                              plan.size - 1, plan.size));
  }
  const int local_size = plan.local_size.value_or(plan.size);
  if (local_size < 1 || local_size > plan.size) {
    throw invalid(
        fmt::format("LOCAL_WORLD_SIZE is {}; it must be from 1 to the world size, {}", local_size, plan.size));
  }
  if (plan.local_rank && (*plan.local_rank < 0 || *plan.local_rank >= local_size)) {
    throw invalid(fmt::format("LOCAL_RANK {} is outside the legal interval [0, {}]", *plan.local_rank, local_size - 1));
  }
  if (plan.node_rank && *plan.node_rank < 0)
    throw invalid(fmt::format("GROUP_RANK is {}; it must not be negative", *plan.node_rank));
}

void read_job(const EnvironmentReader& reader, JoinPlan& plan) {
  plan.job_id = reader.first_of({"LOCKSTEP_JOB_ID", "TORCHELASTIC_RUN_ID"}).value_or(kDefaultJobId);
  plan.generation = reader.number<std::uint64_t>("LOCKSTEP_GENERATION")
                        .value_or(reader.number<std::uint64_t>("TORCHELASTIC_RESTART_COUNT").value_or(0));
  plan.local_rank = reader.number("LOCAL_RANK");
  plan.local_size = reader.number("LOCAL_WORLD_SIZE");
  plan.node_rank = reader.number("GROUP_RANK");
  plan.token_fd = reader.number("LOCKSTEP_TOKEN_FD");
  plan.token_file = reader.text("LOCKSTEP_TOKEN_FILE").value_or("");
  plan.address = reader.text("LOCKSTEP_ADDRESS").value_or("");
  plan.interfaces = reader.text("LOCKSTEP_IFNAME").value_or("");
  plan.node_label = reader.text("LOCKSTEP_NODE").value_or("");
  if (const auto silence = reader.duration("LOCKSTEP_HOST_TIMEOUT")) plan.host_timeout = *silence;
}

void plan_given_store(const JoinOptions& options, JoinPlan& plan) {
  if (!options.init_method.empty()) {
    throw invalid(fmt::format("both a store and init_method '{}' are given; give one of them", options.init_method));
  }
  std::vector<const char*> missing;
  if (!options.rank) missing.push_back("rank");
  if (!options.world_size) missing.push_back("world_size");
  if (!missing.empty()) throw invalid(fmt::format("a store is given without {}", fmt::join(missing, " and ")));
  plan.rendezvous = Meeting::given_store;
  plan.rank = *options.rank;
  plan.size = *options.world_size;
  plan.source = "arguments store, rank, world_size";
}

// Rank and size from arguments, URL or environment, in this order.
void read_rank_and_size(const JoinOptions& options, const Url& url, const EnvironmentReader& reader,
                        std::vector<const char*>& missing, JoinPlan& plan) {
  auto rank = argument_or_url(options.rank, url, "rank");
  auto size = argument_or_url(options.world_size, url, "world_size");
  if (!rank) rank = reader.number("RANK");
  if (!size) size = reader.number("WORLD_SIZE");
  if (!rank) missing.push_back("RANK");
  if (!size) missing.push_back("WORLD_SIZE");
  plan.rank = rank.value_or(0);
  plan.size = size.value_or(1);
}

// A world of one among several processes of a launcher would be an accident: they would all do the same work.
void check_alone(std::string_view who, const JoinPlan& plan, const std::vector<Launch>& launches) {
  if (plan.size > 1) return;
  for (const Launch& launch : launches) {
    if (launch.size.value_or(launch.rank + 1) <= 1) continue;
    throw invalid(fmt::format(
        "according to {}, this process is a world of one, but {}. Set {}={} to use that launcher, or {}={} if "
        "each of its processes is to be a world of one",
        who, to_string(launch), kSwitch, launch.key, kSwitch, kNone));
  }
}

// RANK and WORLD_SIZE may be left over from another program. With LOCAL_RANK they come from a nearer launcher.
void check_agreement(const JoinPlan& plan, const std::vector<Launch>& launches) {
  check_alone("RANK and WORLD_SIZE", plan, launches);
  if (launches.empty() || !launches.front().size) return;
  const Launch& launch = launches.front();
  if (plan.rank == launch.rank && plan.size == *launch.size) return;
  throw invalid(
      fmt::format("RANK and WORLD_SIZE say rank {} of {}, but {}. Unset RANK and WORLD_SIZE to use the launcher, or "
                  "set {}={} to keep them",
                  plan.rank, plan.size, to_string(launch), kSwitch, kEnv));
}

void plan_variables(const JoinOptions& options, const Url& url, const EnvironmentReader& reader, JoinPlan& plan) {
  std::vector<const char*> missing;
  read_rank_and_size(options, url, reader, missing, plan);
  plan.source = "environment RANK, WORLD_SIZE";
  if (const auto store = reader.text("LOCKSTEP_STORE")) {
    plan.rendezvous = Meeting::launcher;
    plan.endpoint = parse_endpoint(*store);
    plan.source += ", LOCKSTEP_STORE";
  } else if (plan.size > 1 || !missing.empty()) {
    const auto address = reader.text("MASTER_ADDR");
    const auto port = reader.text("MASTER_PORT");
    if (!address) missing.push_back("MASTER_ADDR");
    if (!port) missing.push_back("MASTER_PORT");
    plan.rendezvous = Meeting::rank_zero;
    if (address && port) {
      const bool has_brackets = address->starts_with('[');
      plan.endpoint =
          has_brackets ? parse_endpoint(*address + ":" + *port) : Endpoint{*address, parse_port(*port, "MASTER_PORT")};
    }
    plan.source += ", MASTER_ADDR, MASTER_PORT";
  }
  if (!missing.empty()) {
    throw invalid(
        fmt::format("the environment lacks {}; start the program with a launcher (lockstep run, torchrun, srun, "
                    "mpirun), or set {} in every process",
                    fmt::join(missing, ", "), missing.size() == 1 ? "it" : "them"));
  }
  if (plan.rendezvous == Meeting::rank_zero && reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    // A port that the system chose has others above it that anybody may have got.
    const std::uint16_t port = plan.endpoint.port;
    plan.endpoint.port = port < kFirstEphemeralPort ? port + 1 : port_of_job(fmt::format("torchrun {}", port));
  }
}

// MASTER_ADDR and MASTER_PORT take precedence over the launcher's own variables.
void place_store(const Launch& launch, const EnvironmentReader& reader, std::vector<const char*>& missing,
                 JoinPlan& plan) {
  plan.rendezvous = Meeting::rank_zero;
  plan.endpoint.host = reader.text("MASTER_ADDR").value_or(launch.host);
  if (plan.endpoint.host.empty()) missing.push_back("MASTER_ADDR");
  if (const auto port = reader.text("MASTER_PORT")) {
    plan.endpoint.port = parse_port(*port, "MASTER_PORT");
    if (plan.endpoint.port == 0)
      throw invalid("MASTER_PORT is 0, so the other ranks cannot find rank 0; choose a port");
  } else if (launch.port != 0 || !launch.job.empty()) {
    plan.endpoint.port = launch.port != 0 ? launch.port : port_of_job(launch.job);
  } else if (launch.job_fd) {
    plan.job_fd = launch.job_fd;
  } else {
    missing.push_back("MASTER_PORT");
  }
}

void plan_launched(const Launch& launch, const EnvironmentReader& reader, JoinPlan& plan) {
  std::vector<const char*> missing;
  const auto size = reader.number("WORLD_SIZE");
  if (size && launch.size && size != launch.size) {
    throw invalid(
        fmt::format("WORLD_SIZE is {}, but {}; unset WORLD_SIZE, or set RANK as well", *size, to_string(launch)));
  }
  if (!size && !launch.size) missing.push_back("WORLD_SIZE");
  plan.rank = launch.rank;
  plan.size = launch.size.value_or(size.value_or(1));
  plan.local_rank = launch.local_rank;
  plan.local_size = launch.local_size;
  plan.node_rank = launch.node_rank;
  plan.generation = reader.number<std::uint64_t>("LOCKSTEP_GENERATION").value_or(launch.generation);
  if (plan.job_id == kDefaultJobId && !launch.job.empty()) plan.job_id = launch.job;
  plan.source = fmt::format("{} ({})", launch.launcher, launch.variables);
  plan.launched = true;
  if (plan.size > 1 || !missing.empty()) place_store(launch, reader, missing, plan);
  if (missing.empty()) return;
  throw invalid(fmt::format("{}, but the environment lacks {}. Set with: {}. {}={} makes every process a world of one",
                            to_string(launch), fmt::join(missing, ", "), launch.remedy, kSwitch, kNone));
}

// What is left is one process with nothing around it. An allocation of Slurm does not start programs.
void plan_alone(const EnvironmentReader& reader, JoinPlan& plan) {
  plan.source = kAlone;
  const int tasks = reader.number("SLURM_NTASKS").value_or(1);
  if (tasks > 1) {
    plan.advice = fmt::format("alone, in a Slurm job with {} tasks: only srun starts a program in each of them", tasks);
  }
}

const Launch& named_launch(std::string_view name, const std::vector<Launch>& launches) {
  if (const Launch* found = find_launch(name, launches)) return *found;
  throw invalid(fmt::format("{} is {}, but the variables of that launcher are missing: it has not started this process",
                            kSwitch, name));
}

void plan_env(const JoinOptions& options, const Url& url, const EnvironmentReader& reader, JoinPlan& plan) {
  if (!url.target.empty())
    throw invalid(fmt::format("init_method '{}': nothing may follow env://", options.init_method));
  const bool in_arguments = options.rank || options.world_size || !url.query.empty();
  const std::string_view wanted = reader.choice(kSwitch.data()).value_or("");
  // An explicit choice does not look at launchers, whose variables may be anything then.
  if (in_arguments || wanted == kEnv || reader.has("LOCKSTEP_STORE")) return plan_variables(options, url, reader, plan);
  if (wanted == kNone) {
    plan.source = fmt::format("{}={}", kSwitch, kNone);
    return;
  }
  const std::vector<Launch> launches = find_launches(reader);
  const Launch* nearest = launches.empty() ? nullptr : &launches.front();
  if (!wanted.empty()) {
    plan_launched(named_launch(wanted, launches), reader, plan);
  } else if (reader.has("RANK")) {
    plan_variables(options, url, reader, plan);
    if (!reader.has("LOCAL_RANK")) check_agreement(plan, launches);
  } else if (options.bootstrap) {
    plan.rendezvous = Meeting::bootstrap;
    if (nearest != nullptr) plan.expected_size = nearest->size;
    if (nearest != nullptr && nearest->host == kLoopback) plan.endpoint.host = kLoopback;
  } else if (nearest != nullptr) {
    plan_launched(*nearest, reader, plan);
    check_alone(fmt::format("{} ({})", nearest->launcher, nearest->variables), plan, launches);
  } else if (reader.has_any_of({"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})) {
    plan_variables(options, url, reader, plan);
  } else {
    plan_alone(reader, plan);
  }
}

void plan_url(const JoinOptions& options, const Url& url, const EnvironmentReader& reader, JoinPlan& plan) {
  std::vector<const char*> missing;
  read_rank_and_size(options, url, reader, missing, plan);
  if (const auto launches = find_launches(reader); missing.size() == 2 && !launches.empty() && launches.front().size) {
    plan.rank = launches.front().rank;
    plan.size = *launches.front().size;
    missing.clear();
  }
  if (!missing.empty()) {
    throw invalid(
        fmt::format("init_method '{}' needs rank and world_size, as in '?rank=1&world_size=4', as arguments or in "
                    "the environment; missing: {}",
                    options.init_method, fmt::join(missing, ", ")));
  }
  plan.source = options.init_method;
  if (url.scheme == "tcp") {
    plan.rendezvous = Meeting::rank_zero;
    plan.endpoint = parse_endpoint(url.target);
    return;
  }
  if (url.target.empty() || url.target.front() != '/') {
    throw invalid(
        fmt::format("init_method '{}': a file URL has three slashes and an absolute path, as in file:///tmp/meet",
                    options.init_method));
  }
  plan.rendezvous = Meeting::file;
  plan.path = url.target;
}

}  // namespace

JoinPlan plan_join(const JoinOptions& options, const Environment& environment) {
  const EnvironmentReader reader(environment);
  JoinPlan plan;
  read_job(reader, plan);
  if (options.store) {
    plan_given_store(options, plan);
  } else {
    const Url url = parse_url(options.init_method.empty() ? "env://" : options.init_method);
    url.scheme == "env" ? plan_env(options, url, reader, plan) : plan_url(options, url, reader, plan);
  }
  check_numbers(plan);
  const auto bind = reader.text("LOCKSTEP_BIND");
  plan.bind_host = bind == "any" ? "0.0.0.0" : bind.value_or(plan.endpoint.host);
  if (plan.rendezvous == Meeting::rank_zero) {
    if (plan.size == 1) {
      plan.rendezvous = Meeting::alone;
    } else if (plan.endpoint.port == 0 && !plan.job_fd) {
      throw invalid(fmt::format("{}: with port 0 the other ranks cannot find rank 0; choose a port", plan.source));
    }
  }
  return plan;
}

}  // namespace lockstep::internal
