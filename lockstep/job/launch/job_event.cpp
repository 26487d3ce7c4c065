#include "lockstep/job/launch/job_event.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/log_line.h"

namespace lockstep::internal {
namespace {

nlohmann::ordered_json cause_of(const Outcome& outcome) {
  nlohmann::ordered_json cause;
  const RankEnd* rank = outcome.cause();
  if (rank != nullptr) {
    cause["rank"] = rank->rank;
    cause["host"] = rank->host.empty() ? log_host() : rank->host;
    cause["failure"] = outcome.hang.empty() ? failure_text(*rank) : outcome.hang;
    if (!error_of(*rank).empty()) cause["error"] = error_of(*rank);
    if (!rank->last_operation.empty()) cause["last_operation"] = rank->last_operation;
  } else if (!outcome.hang.empty()) {
    cause["failure"] = outcome.hang;
  } else if (!outcome.lost.empty()) {
    cause["host"] = outcome.lost.back().host;
    cause["failure"] = describe(outcome.lost.back());
  }
  return cause;  // null if there is none
}

}  // namespace

const char* name_of(JobEvent::Kind kind) {
  switch (kind) {
    case JobEvent::Kind::start: return "start";
    case JobEvent::Kind::restart: return "restart";
    case JobEvent::Kind::loss: return "loss";
    case JobEvent::Kind::stop: return "stop";
    case JobEvent::Kind::end: return "end";
  }
  return "";
}

std::string json_of(const JobEvent& event) {
  nlohmann::ordered_json object;
  object["event"] = name_of(event.kind);
  object["time"] = log_time();
  object["job"] = event.job_id;
  object["run_id"] = event.run_id;
  object["attempt"] = event.attempt;
  object["world_size"] = event.world_size;
  object["hosts"] = nlohmann::ordered_json::array();
  for (const HostOfEvent& host : event.hosts) {
    nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
    for (int i = 0; i < host.ranks; ++i) ranks.push_back(host.first_rank + i);
    nlohmann::ordered_json entry;
    entry["host"] = host.name;
    entry["ranks"] = std::move(ranks);
    object["hosts"].push_back(std::move(entry));
  }
  object["cause"] = event.outcome ? cause_of(*event.outcome) : nullptr;
  object["stopped_by"] = nullptr;
  if (event.stop_signal != 0) object["stopped_by"] = signal_name(event.stop_signal);
  if (event.kind == JobEvent::Kind::end) object["exit_code"] = event.exit_code;
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::internal
