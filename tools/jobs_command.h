// `lockstep ps` and `lockstep top`: this user's jobs that run on this machine, with their ranks on other hosts, or the
// one at an endpoint; once or every second.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace lockstep::tools {

struct PsOptions {
  bool ranks = false;
  bool json = false;
  std::string rdzv_endpoint;
  std::string rdzv_id;
};
CLI::App* add_ps(CLI::App& app, PsOptions& options);
int ps_command(const PsOptions& options);

struct TopOptions {
  double interval_seconds = 1;
  bool once = false;
  std::string rdzv_endpoint;
  std::string rdzv_id;
};
CLI::App* add_top(CLI::App& app, TopOptions& options);
// Until 'q' or Ctrl-C; if standard output is no terminal, one table after another.
int top_command(const TopOptions& options);

}  // namespace lockstep::tools
