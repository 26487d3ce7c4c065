#include "lockstep/train/checkpoint/run_log.h"

#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/machine.h"
#include "lockstep/base/open_for_writing.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/train/checkpoint/manifest.h"

namespace lockstep::internal {
namespace {

using nlohmann::ordered_json;

std::string text_of(const ordered_json& line) {
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// As the process was started; empty without /proc.
std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

ordered_json steps_of(int rank, const RankSteps& steps) {
  const StepTimes& times = steps.times;
  ordered_json line{{"rank", rank}, {"data_s", times.data}};
  if (times.compute == 0) {
    line["forward_s"] = times.forward;
    line["backward_s"] = times.backward;
  } else {
    line["compute_s"] = times.compute;
  }
  line["optimizer_s"] = times.optimizer;
  line["waiting_s"] = times.waiting;
  line["communicating_s"] = times.communicating;
  line["step_s"] = times.total();
  line["hidden_s"] = times.hidden;
  line["late_s"] = steps.late.mean;
  return line;
}

bool ends_within_a_line(const UniqueFd& file, const std::string& doing) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw system_error(doing, errno);
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  return bytes != 0 && read_at(file.get(), bytes - 1, 1, doing) != "\n";
}

}  // namespace

RunFacts facts_of_this_process() {
  const EnvironmentReader reader;
  return {.command = command_line(),
          .host = host_name(),
          .started = time_of_writing(),
          .versions = {{"lockstep", LOCKSTEP_VERSION}},
          .restarts = reader.number<std::uint64_t>("LOCKSTEP_GENERATION")
                          .value_or(reader.number<std::uint64_t>("TORCHELASTIC_RESTART_COUNT").value_or(0)),
          .restart_reason = reader.text("LOCKSTEP_RESTART_REASON").value_or("")};
}

std::string run_line(const RunFacts& facts) {
  return text_of({{"kind", "run"},
                  {"command", facts.command},
                  {"host", facts.host},
                  {"started", facts.started},
                  {"step", facts.step},
                  {"threads", facts.threads},
                  {"versions", facts.versions}});
}

std::string restart_line(const RunFacts& facts) {
  ordered_json line{{"kind", "restart"}, {"attempt", facts.restarts + 1}};
  if (!facts.restart_reason.empty()) line["reason"] = facts.restart_reason;
  line["at"] = facts.started;
  return text_of(line);
}

std::string steps_line(std::int64_t step, const StepReport& report) {
  ordered_json ranks = ordered_json::array();
  for (std::size_t rank = 0; rank < report.ranks.size(); ++rank) {
    ranks.push_back(steps_of(static_cast<int>(rank), report.ranks[rank]));
  }
  ordered_json line{{"kind", "steps"},           {"step", step},
                    {"steps", report.steps},     {"world_size", report.ranks.size()},
                    {"ranks", std::move(ranks)}, {"straggler", nullptr}};
  if (report.straggler) line["straggler"] = report.straggler->rank;
  return text_of(line);
}

std::string checkpoint_line(std::int64_t step, const std::filesystem::path& path, double seconds) {
  return text_of({{"kind", "checkpoint"}, {"step", step}, {"path", path.string()}, {"seconds", seconds}});
}

void append_line(const std::filesystem::path& file, const std::string& line) {
  const std::string doing = "cannot write " + file.string();
  const UniqueFd out = open_to_append(file, kSharedMode, doing);
  const std::string before = ends_within_a_line(out, doing) ? "\n" : "";
  write_all(out.get(), before + line + '\n', doing);
}

}  // namespace lockstep::internal
