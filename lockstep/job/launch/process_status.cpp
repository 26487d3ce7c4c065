#include "lockstep/job/launch/process_status.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <system_error>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostProcesses = 512;  // of one rank
// What counts as progress: this share of a core, or so many bytes a second.
constexpr double kLeastCpu = 0.02;
constexpr Duration kLeastTime = std::chrono::milliseconds(30);  // the kernel counts in ticks
constexpr double kLeastBytes = 64 << 10;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What follows "Name:\t" in a status file.
std::string_view field_of(std::string_view status, std::string_view name) {
  for (std::size_t line = 0; line < status.size();) {
    const std::size_t end = std::min(status.find('\n', line), status.size());
    std::string_view text = status.substr(line, end - line);
    if (text.starts_with(name) && text.substr(name.size()).starts_with(':')) {
      text.remove_prefix(name.size() + 1);
      const std::size_t begin = text.find_first_not_of(" \t");
      return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
    }
    line = end + 1;
  }
  return {};
}

std::uint64_t number_in(std::string_view text, int base) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

Duration from_ticks(std::uint64_t ticks) {
  static const auto per_second = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  return Duration(static_cast<std::int64_t>(ticks * (1'000'000'000 / per_second)));
}

// By its executable: the name of a process that runs a script is that of the script.
bool is_shell(int pid) {
  static constexpr std::array<std::string_view, 11> kShells{"ash", "bash", "busybox", "csh",  "dash", "fish",
                                                            "ksh", "mksh", "sh",      "tcsh", "zsh"};
  std::error_code error;
  const std::string name = std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), error).filename().string();
  return std::ranges::find(kShells, name) != kShells.end();
}

// Of one process, with the children that it has waited for.
std::optional<ProcessActivity> read_one(int pid, const TcpBytes& tcp) {
  const std::string stat = text_of(fmt::format("/proc/{}/stat", pid));
  const std::size_t name_end = stat.rfind(") ");  // a name may contain anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream words(stat.substr(name_end + 2));
  std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
  constexpr std::size_t kUserTicks = 11;  // then system's, then both of ended children
  if (fields.size() < kUserTicks + 4) return std::nullopt;
  ProcessActivity activity{.state = fields[0][0]};
  for (std::size_t i = 0; i < 4; ++i) activity.cpu += from_ticks(number_in(fields[kUserTicks + i], 10));
  const std::string io = text_of(fmt::format("/proc/{}/io", pid));
  activity.bytes = number_in(field_of(io, "rchar"), 10) + number_in(field_of(io, "wchar"), 10);
  activity.bytes += tcp.of_process(pid);
  return activity;
}

}  // namespace

std::vector<int> threads_of(int pid) {
  std::vector<int> threads;
  std::error_code error;
  std::filesystem::directory_iterator entry(fmt::format("/proc/{}/task", pid), error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    threads.push_back(static_cast<int>(number_in(entry->path().filename().string(), 10)));
  }
  std::ranges::sort(threads);
  return threads;
}

std::vector<int> children_of(int pid) {
  std::vector<int> children;
  for (const int thread : threads_of(pid)) {
    std::istringstream words(text_of(fmt::format("/proc/{}/task/{}/children", pid, thread)));
    children.insert(children.end(), std::istream_iterator<int>(words), {});
  }
  return children;
}

std::vector<int> run_by_shell(int pid) {
  std::vector<int> run;
  if (is_shell(pid)) run = children_of(pid);
  for (std::size_t i = 0; i < run.size() && i < kMostProcesses; ++i) {
    if (!is_shell(run[i])) continue;
    const std::vector<int> more = children_of(run[i]);
    run.insert(run.end(), more.begin(), more.end());
  }
  return run;
}

std::optional<ThreadStatus> read_thread_status(int pid, int thread) {
  const std::string text = text_of(fmt::format("/proc/{}/task/{}/status", pid, thread));
  const std::string_view state = field_of(text, "State");
  if (state.empty()) return std::nullopt;
  return ThreadStatus{.name = std::string(field_of(text, "Name")),
                      .state = state[0],
                      .caught = number_in(field_of(text, "SigCgt"), 16),
                      .blocked = number_in(field_of(text, "SigBlk"), 16),
                      .ignored = number_in(field_of(text, "SigIgn"), 16)};
}

std::map<int, std::uint64_t> ignored_by_groups(const std::set<int>& groups) {
  std::map<int, std::uint64_t> ignored;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const int pid = static_cast<int>(number_in(entry->path().filename().string(), 10));
    const int group = pid > 0 ? ::getpgid(pid) : -1;
    if (!groups.contains(group)) continue;
    const std::optional<ThreadStatus> status = read_thread_status(pid, pid);
    if (!status || status->state == 'Z' || status->state == 'X') continue;
    const auto [place, is_first] = ignored.try_emplace(group, status->ignored);
    if (!is_first) place->second &= status->ignored;
  }
  return ignored;
}

std::optional<ProcessActivity> read_activity(int pid, int main_pid, const TcpBytes& tcp) {
  std::optional<ProcessActivity> activity = read_one(pid, tcp);
  if (!activity) return activity;
  std::vector<int> family = children_of(pid);
  for (std::size_t i = 0; i < family.size() && i < kMostProcesses; ++i) {
    const std::optional<ProcessActivity> child = read_one(family[i], tcp);
    if (!child) continue;
    if (family[i] == main_pid) activity->state = child->state;
    activity->cpu += child->cpu;
    activity->bytes += child->bytes;
    const std::vector<int> more = children_of(family[i]);
    family.insert(family.end(), more.begin(), more.end());
  }
  return activity;
}

void ActivityWindow::add(TimePoint now, const ProcessActivity& seen, Duration window) {
  samples_.push_back({now, seen});
  while (samples_.size() > 2 && now - samples_[1].at >= window) samples_.pop_front();
}

double ActivityWindow::per_second(double value) const {
  const double span = seconds(samples_.back().at - samples_.front().at);
  return span > 0 ? std::max(0.0, value / span) : 0;
}

double ActivityWindow::cpu() const { return per_second(seconds(samples_.back().seen.cpu - samples_.front().seen.cpu)); }

bool ActivityWindow::is_progress() const {
  const auto bytes = [](const Sample& sample) { return static_cast<double>(sample.seen.bytes); };
  const bool computes = cpu() >= kLeastCpu && samples_.back().seen.cpu - samples_.front().seen.cpu >= kLeastTime;
  return computes || per_second(bytes(samples_.back()) - bytes(samples_.front())) >= kLeastBytes;
}

}  // namespace lockstep::internal
