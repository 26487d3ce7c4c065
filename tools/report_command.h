// `lockstep report`: makes a page, a table and TensorBoard's files from the records of trainings. No torch.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace lockstep::tools {

struct ReportOptions {
  std::vector<std::string> runs;  // directories
  std::string out;                // the page; this and the next two: empty if it is not asked for
  std::string csv;
  std::string tensorboard;  // a directory, which is made
};
CLI::App* add_report(CLI::App& app, ReportOptions& options);

// The exit code: 0; or 1 and the error on standard error. Damaged lines of a run are warnings.
int report_command(const ReportOptions& options);

}  // namespace lockstep::tools
