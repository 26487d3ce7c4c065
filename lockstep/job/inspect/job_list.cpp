#include "lockstep/job/inspect/job_list.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/machine.h"
#include "lockstep/base/observe/backward_name.h"
#include "lockstep/base/observe/flight_file.h"

namespace lockstep::internal {
namespace {

using NamedValues = std::map<std::string, std::string, std::less<>>;

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// Those of a program's start; "NAME=value" each, with a zero behind it.
NamedValues variables_of(const std::string& folder) {
  NamedValues variables;
  std::istringstream entries(text_of(folder + "/environ"));
  for (std::string entry; std::getline(entries, entry, '\0');) {
    const std::size_t equals = entry.find('=');
    if (equals != std::string::npos) variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return variables;
}

std::string variable(const NamedValues& variables, std::string_view name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

struct ProcessState {
  char state = '?';
  int parent = 0;
  double cpu_seconds = 0;
  double age_seconds = 0;
  std::uint64_t resident_bytes = 0;
};

double uptime_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// "811 (name) S 1 ...": the name may hold anything.
std::optional<ProcessState> state_of(const std::string& folder) {
  const std::string text = text_of(folder + "/stat");
  const std::size_t behind = text.rfind(')');
  if (behind == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(behind + 1));
  const std::vector<std::string> values(std::istream_iterator<std::string>(fields), {});
  constexpr std::size_t kParent = 1;
  constexpr std::size_t kUser = 11;
  constexpr std::size_t kSystem = 12;
  constexpr std::size_t kStart = 19;
  constexpr std::size_t kResident = 21;
  if (values.size() <= kResident) return std::nullopt;
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const auto value = [&](std::size_t index) { return std::strtod(values[index].c_str(), nullptr); };
  return ProcessState{
      .state = values[0][0],
      .parent = number(values[kParent]).value_or(0),
      .cpu_seconds = (value(kUser) + value(kSystem)) / ticks,
      .age_seconds = uptime_seconds() - value(kStart) / ticks,
      .resident_bytes = static_cast<std::uint64_t>(value(kResident)) * static_cast<std::uint64_t>(::getpagesize())};
}

double age_of(std::int64_t ns) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec - ns) * 1e-9;
}

double per_second(double count, std::int64_t from_ns, std::int64_t to_ns) {
  return to_ns > from_ns && from_ns > 0 ? count / (static_cast<double>(to_ns - from_ns) * 1e-9) : 0;
}

void add_rates(const FlightSnapshot& snapshot, JobRank& rank) {
  const std::vector<FlightRecord>& records = snapshot.records;
  const FlightRecord& first = records.front();
  const FlightRecord& last = records.back();
  rank.operations_per_second =
      per_second(static_cast<double>(last.number - first.number), first.issued_ns, last.issued_ns);
  std::optional<std::pair<int, std::int64_t>> earliest;
  std::optional<std::pair<int, std::int64_t>> latest;
  for (const FlightRecord& record : records) {
    if (record.name == 0) continue;
    const std::optional<int> backward = backward_of_first_bucket(snapshot.names.text_of(record.name));
    if (!backward) continue;
    latest = {*backward, record.issued_ns};
    if (!earliest) earliest = latest;
  }
  if (earliest) {
    rank.steps_per_second = per_second(latest->first - earliest->first, earliest->second, latest->second);
  }
}

void add_recording(const std::string& path, const std::string& job, JobRank& rank) {
  try {
    const FlightSnapshot snapshot = read_flight_file(path);
    if (snapshot.job != job || snapshot.rank != rank.rank || snapshot.records.empty()) return;
    rank.operations = snapshot.operations;
    const FlightRecord& last = snapshot.records.back();
    const bool over = last.finished_ns != 0;
    rank.doing = printable((over ? "after " : "in ") + describe(last, snapshot.names));
    rank.doing_seconds = age_of(over ? last.finished_ns : std::max(last.started_ns, last.issued_ns));
    add_rates(snapshot, rank);
  } catch (const Error&) {  // it has ended meanwhile, or what it holds is no recording
  }
}

std::string program_of(const std::string& folder) {
  std::string text = text_of(folder + "/cmdline");
  std::ranges::replace(text, '\0', ' ');
  text = printable(std::move(text));
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::vector<int> processes_of_this_user(const std::string& proc) {
  std::vector<int> pids;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(proc.c_str()), [](DIR* open) { return ::closedir(open); });
  while (const dirent* entry = folder == nullptr ? nullptr : ::readdir(folder.get())) {
    struct stat status {};
    const auto pid = number(entry->d_name);
    if (!pid || ::stat((proc + "/" + entry->d_name).c_str(), &status) != 0 || status.st_uid != ::geteuid()) continue;
    pids.push_back(*pid);
  }
  return pids;
}

struct Candidate {
  int pid = 0;
  NamedValues variables;
  ProcessState state;
};

std::optional<Candidate> candidate_of(const std::string& proc, int pid) {
  const std::string folder = proc + "/" + std::to_string(pid);
  Candidate candidate{.pid = pid, .variables = variables_of(folder), .state = {}};
  const auto state = state_of(folder);
  const bool is_of_job = !variable(candidate.variables, "LOCKSTEP_JOB_ID").empty();
  if (!is_of_job || !state || !number(variable(candidate.variables, "RANK"))) return std::nullopt;
  candidate.state = *state;
  return candidate;
}

// Processes that a rank has started have its variables, too. The rank's own is the one whose parent is not of the job.
std::vector<Candidate> processes_of_jobs(const std::string& proc) {
  std::vector<Candidate> candidates;
  std::set<std::pair<int, std::string>> members;  // pid and job
  for (const int pid : processes_of_this_user(proc)) {
    std::optional<Candidate> candidate = candidate_of(proc, pid);
    if (!candidate) continue;
    members.emplace(pid, variable(candidate->variables, "LOCKSTEP_JOB_ID"));
    candidates.push_back(std::move(*candidate));
  }
  std::erase_if(candidates, [&](const Candidate& each) {
    return members.contains({each.state.parent, variable(each.variables, "LOCKSTEP_JOB_ID")});
  });
  return candidates;
}

JobRank look_at(const std::string& proc, const Candidate& each) {
  const std::string folder = proc + "/" + std::to_string(each.pid);
  const std::string node = variable(each.variables, "LOCKSTEP_NODE");
  JobRank rank{.rank = *number(variable(each.variables, "RANK")),
               .host = printable(node.empty() ? host_name() : node),
               .pid = each.pid,
               .state = each.state.state,
               .program = program_of(folder),
               .attempt = number(variable(each.variables, "LOCKSTEP_GENERATION")).value_or(0),
               .cpu_seconds = each.state.cpu_seconds,
               .age_seconds = each.state.age_seconds,
               .resident_bytes = each.state.resident_bytes};
  if (const auto fd = number(variable(each.variables, "LOCKSTEP_FLIGHT_FD"))) {
    add_recording(folder + "/fd/" + std::to_string(*fd), variable(each.variables, "LOCKSTEP_JOB_ID"), rank);
  }
  return rank;
}

}  // namespace

std::string printable(std::string text) {
  std::erase_if(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  return text;
}

Job choose_job(const std::vector<Job>& jobs, const std::string& name) {
  std::vector<const Job*> found;
  std::string all;
  for (const Job& job : jobs) {
    if (job.id == name) return job;
    if (job.id.starts_with(name) || job.run_id == name) found.push_back(&job);
    all += fmt::format("{}{}", all.empty() ? "" : ", ", job.id);
    if (job.run_id != job.id && !job.run_id.empty()) all += fmt::format(" ({})", job.run_id);
  }
  if (found.size() == 1) return *found.front();
  if (all.empty()) all = "none of this user on this machine";
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{} job has the name {}; there are: {}", found.empty() ? "no" : "more than one", name, all));
}

std::vector<JobRank> look_at_ranks(const std::string& job_id, const std::vector<int>& pids) {
  std::vector<JobRank> ranks;
  for (const int pid : pids) {
    const auto candidate = candidate_of("/proc", pid);
    if (!candidate || variable(candidate->variables, "LOCKSTEP_JOB_ID") != job_id) continue;
    ranks.push_back(look_at("/proc", *candidate));
  }
  return ranks;
}

std::vector<Job> find_jobs(const std::string& proc) {
  std::map<std::string, Job> jobs;
  for (const Candidate& each : processes_of_jobs(proc)) {
    const std::string id = variable(each.variables, "LOCKSTEP_JOB_ID");
    Job& job = jobs[id];
    job.id = printable(id);
    job.launcher_pid = each.state.parent;
    job.world_size = number(variable(each.variables, "WORLD_SIZE")).value_or(0);
    job.run_id = printable(variable(each.variables, "TORCHELASTIC_RUN_ID"));
    job.rdzv_endpoint = printable(variable(each.variables, "LOCKSTEP_RDZV_ENDPOINT"));
    job.token_fd = number(variable(each.variables, "LOCKSTEP_TOKEN_FD")).value_or(-1);
    job.ranks.push_back(look_at(proc, each));
  }
  std::vector<Job> list;
  for (auto& [id, job] : jobs) {
    std::ranges::sort(job.ranks, {}, &JobRank::rank);
    list.push_back(std::move(job));
  }
  return list;
}

}  // namespace lockstep::internal
