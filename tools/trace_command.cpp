#include "tools/trace_command.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/observe/chrome_trace.h"
#include "lockstep/base/observe/flight_file.h"
#include "lockstep/base/observe/flight_report.h"
#include "lockstep/job/launch/recordings_folder.h"
#include "lockstep/job/launch/report_file.h"
#include "lockstep/job/launch/shell_quoted.h"
#include "tools/standard_output.h"

namespace lockstep::tools {

using namespace internal;

namespace {

using nlohmann::json;

json json_of(const FlightRecord& record, const FlightNames& names) {
  json object{{"number", record.number},
              {"category", record.category == FlightCategory::message ? "message" : "collective"},
              {"operation", record.operation},
              {"sequence", record.sequence},
              {"count", record.count},
              {"dtype", to_string(record.dtype)},
              {"state", to_string(record.state)},
              {"issued_ns", record.issued_ns},
              {"started_ns", record.started_ns},
              {"finished_ns", record.finished_ns},
              {"text", describe(record, names)}};
  if (record.reduction[0] != '\0') object["reduction"] = record.reduction;
  if (record.peer >= 0) object[record.category == FlightCategory::message ? "peer" : "root"] = record.peer;
  if (record.category == FlightCategory::message) object["tag"] = record.tag;
  if (record.name != 0) object["name"] = record.name;
  if (record.error != 0) object["error"] = to_string(static_cast<ErrorKind>(record.error - 1));
  if (record.error_peer >= 0) object["error_peer"] = record.error_peer;
  return object;
}

json json_of(const GroupReport& group, const FlightNames& names, std::size_t last_operations) {
  json object{{"name", group.name}, {"size", group.size}, {"differ", group.differ}, {"ranks", json::array()}};
  for (const FlightStatus& status : group.statuses) {
    json rank{{"rank", status.rank}, {"queued", status.queued}};
    if (status.last) rank["last"] = json_of(*status.last, names);
    object["ranks"].push_back(std::move(rank));
  }
  for (const auto& [rank, record] : group.mismatch) {
    object["mismatch"].push_back({{"rank", rank}, {"operation", json_of(record, names)}});
  }
  object["arrivals"] = json::array();
  const std::size_t count = std::min(last_operations, group.arrivals.size());
  for (std::size_t i = group.arrivals.size() - count; i < group.arrivals.size(); ++i) {
    const FlightArrival& arrival = group.arrivals[i];
    object["arrivals"].push_back({{"sequence", arrival.record.sequence},
                                  {"text", describe(arrival.record, names)},
                                  {"first_rank", arrival.first},
                                  {"last_rank", arrival.last},
                                  {"spread_ns", arrival.spread_ns}});
  }
  return object;
}

json json_of(const FlightSnapshot& snapshot, const FlightNames& names, std::size_t last_operations) {
  json object{{"rank", snapshot.rank},      {"host", snapshot.host},        {"pid", snapshot.pid},
              {"ended", snapshot.ended},    {"wall_ns", snapshot.wall_ns},  {"monotonic_ns", snapshot.monotonic_ns},
              {"torn", snapshot.torn},      {"begun", snapshot.operations}, {"groups", json::object()},
              {"operations", json::array()}};
  for (const FlightGroup& group : snapshot.groups) object["groups"][std::to_string(group.number)] = group.name;
  const std::size_t count = std::min(last_operations, snapshot.records.size());
  for (auto record = snapshot.records.end() - static_cast<std::ptrdiff_t>(count); record != snapshot.records.end();
       ++record) {
    object["operations"].push_back(json_of(*record, names));
    object["operations"].back()["group"] = record->group;
  }
  return object;
}

void print_json(const std::vector<FlightSnapshot>& snapshots, std::size_t last_operations) {
  json document{{"job", snapshots.front().job},
                {"world_size", snapshots.front().world_size},
                {"ranks", json::array()},
                {"groups", json::array()}};
  const FlightNames names = names_of(snapshots);
  for (const FlightSnapshot& snapshot : snapshots) {
    document["ranks"].push_back(json_of(snapshot, names, last_operations));
  }
  for (const GroupReport& group : report_of(snapshots)) {
    document["groups"].push_back(json_of(group, names, last_operations));
  }
  print(document.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

// The first attempt with recordings is the one to look at: later ones began because of its failure.
std::string folder_of(const TraceOptions& options) {
  const std::string parent = options.flight.empty() ? state_folder() : "";
  const std::string job = options.flight.empty() ? newest_job_folder(parent) : options.flight;
  if (job.empty()) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("no job of this user left flight recordings in '{}'; name a folder with --flight", parent));
  }
  const std::vector<int> attempts = recorded_attempts(job);
  const std::string folder = attempt_folder(job, attempts.empty() ? 0 : attempts.front());
  if (options.flight.empty()) std::fprintf(stderr, "lockstep: showing the recordings in %s\n", folder.c_str());
  if (attempts.size() > 1) {
    std::fprintf(stderr,
                 "lockstep: this is attempt %d; later attempts also left recordings: %s; show the last one with "
                 "lockstep trace --flight %s\n",
                 attempts.front(), fmt::format("{}", fmt::join(attempts.begin() + 1, attempts.end(), ", ")).c_str(),
                 shell_quoted(attempt_folder(job, attempts.back())).c_str());
  }
  return folder;
}

}  // namespace

CLI::App* add_trace(CLI::App& app, TraceOptions& options) {
  CLI::App* trace = app.add_subcommand("trace", "Show where each rank of a job was: in which collective, and how far");
  trace->add_option("--flight", options.flight,
                    "The directory with the ranks' flight recordings, of a job or of one of its attempts (default: "
                    "those of this user's newest job in ~/.local/state/lockstep/flight)");
  trace->add_option("--last", options.last_operations,
                    "Operations of each rank and collectives of each group to show (default 10)");
  CLI::Option* json = trace->add_flag("--json", options.json, "Print JSON");
  CLI::Option* chrome =
      trace->add_option("--chrome", options.chrome, "Write a trace of all ranks to a file, for Perfetto or Chrome");
  chrome->excludes(json);
  trace->add_option("--steps", options.steps, "The last steps of the training, in that trace (default: all recorded)")
      ->needs(chrome)
      ->check(CLI::Range(1, 1'000'000'000));
  trace->footer(
      "Examples:\n  lockstep trace --last 20\n"
      "  lockstep trace --flight ~/.local/state/lockstep/flight/<job>/attempt_1\n"
      "  lockstep run --flight recordings ./train; lockstep trace --flight recordings --json\n"
      "  lockstep trace --flight recordings --chrome trace.json --steps 20\n");
  trace->prefix_command(false);
  return trace;
}

int trace_command(const TraceOptions& options) {
  try {
    const auto snapshots = read_flight_directory(folder_of(options));
    if (!options.chrome.empty()) {
      write_report_file(options.chrome, chrome_trace(snapshots, options.steps));
    } else if (options.json) {
      print_json(snapshots, options.last_operations);
    } else {
      for (const std::string& line : report_lines(snapshots, options.last_operations)) print(line + "\n");
    }
    return EXIT_SUCCESS;
  } catch (const Error& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return EXIT_FAILURE;
  }
}

}  // namespace lockstep::tools
