// `lockstep trace`: tells what the flight recordings of a job's ranks hold.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>

namespace lockstep::tools {

struct TraceOptions {
  std::string flight;                // a directory of recordings; empty: that of this user's newest job
  std::size_t last_operations = 10;  // of each rank, and collectives of each group
  bool json = false;
  std::string chrome;     // a file to write a trace of all ranks to; empty: none
  std::size_t steps = 0;  // the last ones of a training, in that trace; 0: all that are recorded
};
CLI::App* add_trace(CLI::App& app, TraceOptions& options);

// The exit code: 0, or 1 if a recording cannot be read or the trace cannot be written; what is wrong is then on
// standard error.
int trace_command(const TraceOptions& options);

}  // namespace lockstep::tools
