// The lines of metrics.jsonl, the log of a training. Each is a JSON object. Those with a "kind" describe the run, its
// steps, checkpoints and restarts; the program's own, one per epoch, have none. facts -> line -> file. Pure except
// append_line(), which blocks on the disk, and facts_of_this_process().
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/ddp/timing/step_report.h"

namespace lockstep::internal {

// Of a process that trains.
struct RunFacts {
  std::vector<std::string> command;
  std::string host;
  std::string started;  // as of time_of_writing()
  int threads = 0;
  std::int64_t step = 0;  // after which it resumes; later steps in the file are of an earlier run
  std::map<std::string, std::string> versions;
  std::uint64_t restarts = 0;       // before this start, as the launcher reports
  std::string restart_reason = {};  // of the last one; empty: not known
};

// Threads, step, and versions of libraries but Lockstep, are for the caller to add.
RunFacts facts_of_this_process();

// {"kind": "run", ...}
std::string run_line(const RunFacts& facts);
// {"kind": "restart", "attempt": ..., "reason": ...}: how often ranks have been started, the first time included.
std::string restart_line(const RunFacts& facts);
// {"kind": "steps", "step": the last one, ...}: means of a step in seconds, by rank.
std::string steps_line(std::int64_t step, const StepReport& report);
// {"kind": "checkpoint", ...}
std::string checkpoint_line(std::int64_t step, const std::filesystem::path& path, double seconds);

// Adds a line to the file, and an end of line; one before it too, if a killed writer has left half a line. Errors with
// the path: the file cannot be written, or is a link, a FIFO or a device.
void append_line(const std::filesystem::path& file, const std::string& line);

}  // namespace lockstep::internal
