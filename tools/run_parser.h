// RunParser is the parser of one reading of `lockstep run`'s options. Its arguments are texts as they were written.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tools/run_options.h"
#include "tools/run_program.h"
#include "tools/run_sources.h"

namespace lockstep::tools {

struct RunArguments {
  std::string ranks = "1";
  std::string nodes;
  int node_rank = -1;
  std::string rdzv_backend;
  std::string rdzv_config;
  double shutdown_timeout_seconds = 5;
  double stop_grace_seconds = 25;
  double hang_timeout_seconds = 0;
  double monitor_interval_seconds = 0;
  std::string signals;
  std::string start_method;
  std::string event_log_handler;
  std::string logs_specs;
  std::string redirects;
  std::string tee;
  std::string shown_ranks;
  std::string stdout_filters;
  std::string stderr_filters;
  std::string numa_binding;
  std::string memory_per_rank;
  std::string cpus_per_rank;
  std::string hosts;
  std::string config;
  std::vector<std::string> environment;
  ProgramStyle style;
  bool prefix = false;
  bool no_prefix = false;
  RunOptions run;  // what needs no reading
};

class RunParser {
 public:
  // all: the help shows every option, and not only the common ones; errors name options only if it does.
  explicit RunParser(bool all);
  RunParser(const RunParser&) = delete;
  RunParser& operator=(const RunParser&) = delete;

  // The first word is "run". Throws CLI::Error, CLI::Success for the help.
  void parse(const std::vector<std::string>& words);

  const RunArguments& arguments() const { return arguments_; }
  bool wants_all_help() const { return help_all_; }
  std::string help() const { return run_->help(app_.get_name()); }
  OptionNames names() const;
  // The program and its arguments. Throws CLI::Error if there is none.
  std::vector<std::string> program() const;

 private:
  void add_ranks();
  void add_hosts();
  void add_ends();
  void add_output();
  void add_program();
  std::vector<std::string> with_empty_values(const std::vector<std::string>& words) const;
  CLI::Option* option(const char* name, std::string& value, const char* text);
  CLI::Option* option(const char* name, double& value, const char* text);
  CLI::Option* flag(const char* name, bool& value, const char* text);
  CLI::Option* common(CLI::Option* option);

  bool all_;
  CLI::App app_{"", "lockstep"};
  CLI::App* run_;
  RunArguments arguments_;
  bool help_all_ = false;
};

}  // namespace lockstep::tools
