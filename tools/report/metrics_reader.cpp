#include "tools/report/metrics_reader.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"

namespace lockstep::tools {

using namespace internal;

namespace {

using nlohmann::json;

constexpr std::size_t kLongestLine = std::size_t{1} << 20;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
constexpr std::size_t kMostDescribed = 20;
constexpr std::int64_t kMostRanks = 1 << 16;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;
constexpr std::int64_t kMostStepsOfALine = 1'000'000'000;
constexpr const char* kWhatIsARun =
    "a run is the directory that a program passes to lockstep::TrainingRun, which writes metrics.jsonl there "
    "(lockstep::save() does not)";

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::corrupt_data, what); }

std::int64_t checked_integer(const json& value, const char* name, std::int64_t least, std::int64_t most) {
  if (!value.is_number_integer()) refuse(fmt::format("\"{}\" is not an integer", name));
  const bool is_above = value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(most);
  if (is_above || value.get<std::int64_t>() < least) {
    refuse(fmt::format("\"{}\" is {}; it must be from {} to {}", name, value.dump(), least, most));
  }
  return value.get<std::int64_t>();
}

std::optional<std::int64_t> integer_if_any(const json& object, const char* name, std::int64_t least,
                                           std::int64_t most) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return {};
  return checked_integer(*found, name, least, most);
}

std::int64_t integer(const json& object, const char* name, std::int64_t least, std::int64_t most) {
  const auto found = integer_if_any(object, name, least, most);
  if (!found) refuse(fmt::format("it has no \"{}\"", name));
  return *found;
}

double seconds(const json& object, std::string_view name) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return kUnknown;
  if (!found->is_number()) refuse(fmt::format("\"{}\" is not a number", name));
  const double value = found->get<double>();
  if (value < 0) refuse(fmt::format("\"{}\" is {}; it must not be negative", name, value));
  return value;
}

// Nested values are refused: they may be too deep to print.
std::string text_of(const json& value) {
  if (value.is_structured()) refuse("it has a list or an object where a string is expected");
  if (value.is_string()) return value.get<std::string>();
  return value.is_null() ? "" : value.dump();
}

std::string text(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? "" : text_of(*found);
}

EpochLine epoch_line(const json& object) {
  EpochLine line{.epoch = integer(object, "epoch", 0, kMostSteps),
                 .step = integer_if_any(object, "step", 0, kMostSteps),
                 .world_size = integer_if_any(object, "world_size", 1, kMostRanks)};
  for (const auto& [name, value] : object.items()) {
    if (name == "epoch" || name == "step" || name == "world_size") continue;
    if (value.is_number() || value.is_null())
      line.metrics.emplace_back(name, value.is_null() ? kUnknown : value.get<double>());
  }
  return line;
}

RankTimes rank_times(const json& object) {
  if (!object.is_object()) refuse("\"ranks\" has an element that is not an object");
  RankTimes times{.rank = static_cast<int>(integer(object, "rank", 0, kMostRanks - 1))};
  for (std::size_t part = 0; part < kStepFields.size(); ++part)
    times.seconds[part] = seconds(object, kStepFields[part]);
  return times;
}

StepsLine steps_line(const json& object) {
  StepsLine line{.step = integer(object, "step", 0, kMostSteps),
                 .steps = integer_if_any(object, "steps", 1, kMostStepsOfALine).value_or(1),
                 .world_size = integer_if_any(object, "world_size", 1, kMostRanks),
                 .straggler = integer_if_any(object, "straggler", 0, kMostRanks - 1)};
  const auto ranks = object.find("ranks");
  if (ranks == object.end() || !ranks->is_array()) refuse("it has no array \"ranks\"");
  for (const json& each : *ranks) line.ranks.push_back(rank_times(each));
  std::ranges::sort(line.ranks, {}, &RankTimes::rank);
  const auto twice = std::ranges::adjacent_find(line.ranks, {}, &RankTimes::rank);
  if (twice != line.ranks.end()) refuse(fmt::format("it has rank {} twice", twice->rank));
  return line;
}

StartLine start_line(const json& object, std::size_t number) {
  StartLine line{.line = number,
                 .step = integer_if_any(object, "step", 0, kMostSteps),
                 .host = text(object, "host"),
                 .started = text(object, "started"),
                 .threads = text(object, "threads")};
  if (const auto command = object.find("command"); command != object.end()) {
    if (command->is_array()) {
      for (const json& word : *command) line.command.push_back(text_of(word));
    } else if (const std::string whole = text_of(*command); !whole.empty()) {
      line.command.push_back(whole);
    }
  }
  const auto versions = object.find("versions");
  if (versions == object.end() || !versions->is_object()) return line;
  for (const auto& [name, version] : versions->items()) line.versions.emplace_back(name, text_of(version));
  return line;
}

template <class Line, class Position>
std::size_t append(std::vector<Line>& lines, Line line, Position position) {
  std::size_t replaced = 0;
  for (; !lines.empty() && lines.back().*position >= line.*position; ++replaced) lines.pop_back();
  lines.push_back(std::move(line));
  return replaced;
}

// A program may log an epoch's metrics in several calls, each with other names.
bool is_part_of(const EpochLine& line, const EpochLine& before) {
  return line.epoch == before.epoch && std::ranges::none_of(line.metrics, [&](const auto& metric) {
           return std::ranges::find(before.metrics, metric.first, [](const auto& each) { return each.first; }) !=
                  before.metrics.end();
         });
}

void add_epoch(RunRecord& run, EpochLine line) {
  if (run.epochs.empty() || !is_part_of(line, run.epochs.back())) {
    run.replaced += append(run.epochs, std::move(line), &EpochLine::epoch);
    return;
  }
  EpochLine& whole = run.epochs.back();
  if (line.step) whole.step = line.step;
  if (line.world_size) whole.world_size = line.world_size;
  whole.metrics.insert(whole.metrics.end(), line.metrics.begin(), line.metrics.end());
  std::ranges::sort(whole.metrics, {}, [](const auto& metric) { return metric.first; });
}

// Lines after the step at which a run resumes are of an earlier run. Epochs without a step are replaced when they are
// repeated; a run from the beginning removes all of them.
void add_start(RunRecord& run, StartLine line) {
  if (line.step) {
    const std::int64_t step = *line.step;
    const auto is_later = [&](const auto& each) { return each.step > step; };
    run.replaced += std::erase_if(run.steps, is_later);
    std::erase_if(run.saves, is_later);
    run.replaced +=
        std::erase_if(run.epochs, [&](const EpochLine& each) { return step == 0 || (each.step && *each.step > step); });
  }
  run.starts.push_back(std::move(line));
}

void add_line(RunRecord& run, std::string_view text_of_line, std::size_t number) {
  if (text_of_line.size() > kLongestLine) refuse(fmt::format("it is longer than {} bytes", kLongestLine));
  const json object = json::parse(text_of_line, nullptr, false);
  if (object.is_discarded()) refuse("it is not JSON");
  if (!object.is_object()) refuse("it is not a JSON object");
  const auto found = object.find("kind");
  if (found == object.end()) {
    add_epoch(run, epoch_line(object));
    return;
  }
  if (!found->is_string()) refuse("\"kind\" is not a string");
  const std::string kind = found->get<std::string>();
  if (kind == "steps") {
    run.replaced += append(run.steps, steps_line(object), &StepsLine::step);
  } else if (kind == "run") {
    add_start(run, start_line(object, number));
  } else if (kind == "restart") {
    run.restarts.push_back({number, text(object, "attempt"), text(object, "reason"), text(object, "at")});
  } else if (kind == "checkpoint") {
    append(run.saves,
           CheckpointLine{integer(object, "step", 0, kMostSteps), text(object, "path"), seconds(object, "seconds")},
           &CheckpointLine::step);
  }
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

RunRecord parse_metrics(std::string_view text_of_file) {
  RunRecord run;
  for (std::size_t number = 1; !text_of_file.empty(); ++number) {
    const std::string_view line = text_of_file.substr(0, text_of_file.find('\n'));
    text_of_file.remove_prefix(std::min(line.size() + 1, text_of_file.size()));
    if (is_blank(line)) continue;
    try {
      add_line(run, line, number);
    } catch (const Error& error) {
      if (++run.damaged_count <= kMostDescribed) run.damaged.push_back({number, error.what()});
    }
  }
  return run;
}

RunRecord read_metrics(const std::filesystem::path& directory) {
  std::error_code error;
  const auto status = std::filesystem::status(directory, error);
  if (!std::filesystem::exists(status)) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("cannot find the run {}: {}; {}", directory.string(),
                            error ? error.message() : std::string("no such directory"), kWhatIsARun));
  }
  if (!std::filesystem::is_directory(status)) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} is not the directory of a run; name the one that contains {}; {}", directory.string(),
                            kMetricsName, kWhatIsARun));
  }
  const std::string path = (directory / kMetricsName).string();
  if (!std::filesystem::exists(path, error)) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} is not a run: it has no {}; {}", directory.string(), kMetricsName, kWhatIsARun));
  }
  const OpenFile file = open_regular_file(path);
  if (file.bytes > kMostBytes) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} has {} bytes; at most {} are read", path, file.bytes, kMostBytes));
  }
  RunRecord run = parse_metrics(read_at(file.fd.get(), 0, file.bytes, fmt::format("reading {}", path)));
  run.path = directory.string();
  return run;
}

}  // namespace lockstep::tools
