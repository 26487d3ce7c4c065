#include "tools/cluster_place.h"

#include <netdb.h>
#include <unistd.h>

#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/machine.h"
#include "lockstep/comm/rendezvous/launch_place.h"

namespace lockstep::tools {
namespace {

// "train-3.train.default.svc.cluster.local", which a pod finds in its own /etc/hosts.
std::string full_host_name() {
  const std::string name = host_name();
  addrinfo hints{};
  hints.ai_flags = AI_CANONNAME;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return name;
  std::string full = found->ai_canonname != nullptr ? found->ai_canonname : name;
  ::freeaddrinfo(found);
  return full;
}

}  // namespace

RunOptions in_cluster(const RunOptions& options) {
  if (options.standalone) return options;
  const EnvironmentReader reader;
  GivenPlace given{.node_rank = options.agent.node_rank, .endpoint = options.rdzv_endpoint, .rdzv_id = options.rdzv_id};
  if (options.chooses_nodes) given.nodes = HostRange{options.agent.machine.least, options.agent.machine.most};
  // Elsewhere names are not asked for, since that can take long.
  if (reader.has("JOB_COMPLETION_INDEX")) given.full_name = full_host_name();
  const auto place = find_launch_place(reader, given);
  if (!place && options.agent.machine.most > 1 && options.rdzv_endpoint.empty()) {
    throw Error(ErrorKind::invalid_argument,
                "--nnodes: several hosts need --rdzv-endpoint HOST:PORT, which is missing, and no cluster manager "
                "provides it; see lockstep run --help");
  }
  if (!place) return options;
  RunOptions completed = options;
  completed.agent.machine.least = place->nodes.least;
  completed.agent.machine.most = place->nodes.most;
  completed.agent.node_rank = place->node_rank;
  completed.rdzv_endpoint = place->endpoint;
  completed.rdzv_id = place->rdzv_id;
  if (place->node_rank.value_or(0) == 0) {
    log_info(fmt::format("{} has started launchers on {} hosts, which meet at {}", place->source, place->nodes.most,
                         place->endpoint));
  }
  return completed;
}

}  // namespace lockstep::tools
