#include "tools/report_command.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/job/launch/report_file.h"
#include "tools/checkpoint_places.h"
#include "tools/report/csv.h"
#include "tools/report/event_file.h"
#include "tools/report/html.h"
#include "tools/report/metrics_reader.h"
#include "tools/report/page.h"
#include "tools/report/run_names.h"
#include "tools/tensor_source.h"

namespace lockstep::tools {

using namespace internal;

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostRuns = 16;
constexpr std::string_view kChoice = "choice.";

// The same each time, so that a run is replaced, and not shown twice.
constexpr const char* kEventFile = "events.out.tfevents.0.lockstep";

std::map<std::string, std::string> settings_of(const SourceFacts& facts) {
  std::map<std::string, std::string> settings;
  for (const auto& [name, value] : facts.metadata) {
    if (name.starts_with(kChoice)) settings[name.substr(kChoice.size())] = value;
    if (name == "arithmetic" && !value.empty()) settings[name] = value;
  }
  return settings;
}

// As `lockstep checkpoint ls` lists them, the newest first.
void add_checkpoints(RunRecord& run, const fs::path& directory) {
  for (const CheckpointPlace& place : checkpoint_places(directory)) {
    FolderCheckpoint checkpoint{.name = place.path.filename().string(), .kind = place.kind, .step = place.step};
    try {
      const auto source = open_tensors(place.path);
      const SourceFacts& facts = source->facts();
      checkpoint.bytes = static_cast<double>(facts.bytes);
      checkpoint.modified_seconds = facts.modified_seconds;
      if (facts.step) checkpoint.step = facts.step;
      if (run.settings.empty()) run.settings = settings_of(facts);
    } catch (const Error& error) {
      checkpoint.damage = error.what();
    }
    run.checkpoints.push_back(std::move(checkpoint));
  }
}

void warn_of_damage(const RunRecord& run) {
  for (const DamagedLine& each : run.damaged) {
    std::fprintf(stderr, "lockstep: %s/%s:%zu: this line is left out: %s\n", plain_text(run.path).c_str(), kMetricsName,
                 each.line, plain_text(each.what).c_str());
  }
  if (run.damaged_count > run.damaged.size()) {
    std::fprintf(stderr, "lockstep: %s/%s: %zu more lines are left out\n", plain_text(run.path).c_str(), kMetricsName,
                 run.damaged_count - run.damaged.size());
  }
}

std::vector<RunRecord> read_runs(const std::vector<std::string>& directories) {
  std::vector<RunRecord> runs;
  std::vector<fs::path> paths;
  for (const std::string& directory : directories) {
    runs.push_back(read_metrics(directory));
    paths.push_back(fs::canonical(directory));
    add_checkpoints(runs.back(), paths.back());
    warn_of_damage(runs.back());
  }
  const std::vector<std::string> names = names_of_runs(paths);
  for (std::size_t i = 0; i < runs.size(); ++i) runs[i].name = names[i];
  return runs;
}

void write_output(const fs::path& path, std::string_view text) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    throw Error(ErrorKind::invalid_argument, fmt::format("{} is a directory; name a file", path.string()));
  }
  write_report_file(path.string(), text);
}

bool is_same_file(const fs::path& one, const fs::path& other) {
  if (one.empty() || other.empty()) return false;
  std::error_code error;
  const fs::path place = fs::weakly_canonical(fs::absolute(one), error);
  return one == other || (!error && place == fs::weakly_canonical(fs::absolute(other), error));
}

// What is read must not be replaced by what is made of it.
void require_other_file(const std::string& output, const std::vector<RunRecord>& runs) {
  std::error_code error;
  for (const RunRecord& run : runs) {
    if (output.empty() || !fs::equivalent(output, fs::path(run.path) / kMetricsName, error)) continue;
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} is the record of a run, which would be overwritten; name another file", output));
  }
}

void write_events(const fs::path& directory, const RunRecord& run) {
  const fs::path folder = directory / run.name;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw lockstep::system_error(fmt::format("creating the directory {}", folder.string()), error.value());
  write_output(folder / kEventFile, event_file_of(run));
}

std::string made_text() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("Made by lockstep {} at {}.", LOCKSTEP_VERSION,
                     utc_text(std::chrono::duration<double>(now).count()));
}

}  // namespace

CLI::App* add_report(CLI::App& app, ReportOptions& options) {
  CLI::App* report = app.add_subcommand("report", "Show trainings as one HTML page, a table, or files for TensorBoard");
  report->add_option("run", options.runs,
                     "Directories of runs, with the metrics.jsonl that TrainingRun writes; up to 16");
  report->add_option("--out", options.out, "Write the page, which needs no other file and no network, to this file");
  report->add_option("--csv", options.csv,
                     "Write a table to this file: a row for each epoch, and for each rank of timed steps");
  report->add_option("--tensorboard", options.tensorboard,
                     "Write event files to this directory, one subdirectory per run");
  report->callback([&options] {
    if (options.runs.empty()) {
      throw CLI::ValidationError(fmt::format(
          "name the directory of a run: the one that the program passed to lockstep::TrainingRun, with a {} "
          "in it; such as: lockstep report out --out report.html",
          kMetricsName));
    }
    if (options.runs.size() > kMostRuns) throw CLI::ValidationError(fmt::format("at most {} runs", kMostRuns));
    if (options.out.empty() && options.csv.empty() && options.tensorboard.empty()) {
      throw CLI::RequiredError("--out, --csv or --tensorboard");
    }
    if (is_same_file(options.out, options.csv)) throw CLI::ValidationError("--out and --csv name the same file");
  });
  report->footer(
      "Exits with 1 if a directory is not a run, or something cannot be written.\n\nExamples:\n"
      "  lockstep report out --out report.html\n"
      "  lockstep report run1 run2 run3 --out report.html --csv report.csv\n"
      "  lockstep report out --tensorboard events\n");
  report->prefix_command(false);
  return report;
}

int report_command(const ReportOptions& options) {
  try {
    const std::vector<RunRecord> runs = read_runs(options.runs);
    require_other_file(options.out, runs);
    require_other_file(options.csv, runs);
    if (!options.out.empty()) write_output(options.out, report_page(runs, made_text()));
    if (!options.csv.empty()) write_output(options.csv, csv_of(runs));
    if (options.tensorboard.empty()) return EXIT_SUCCESS;
    for (const RunRecord& run : runs) write_events(options.tensorboard, run);
    return EXIT_SUCCESS;
  } catch (const Error& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
  } catch (const fs::filesystem_error& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
  }
  return EXIT_FAILURE;
}

}  // namespace lockstep::tools
