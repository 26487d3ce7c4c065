// RunParser is the parser of one reading of `lockstep run`'s options. An option that is added here, with a field of
// RunOptions, AgentOptions, or its parts JobOptions and JobMachineOptions, reaches the code that uses it: nothing
// copies fields. It is also read from the file of --config, and passed on to other hosts. Some need more:
//   torchrun reads it from a variable, PET_<NAME>     kVariables in run_sources.cpp
//   all hosts must have the same value                hello_of() in elastic/hello.cpp
//   it is for this launcher or the first host alone   the lists in run_over_ssh.cpp
//   --dry-run shows it                                dry_run.cpp
// Always: share/man/man1/lockstep.1, which torchrun_test compares with the help.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tools/run_options.h"
#include "tools/run_program.h"
#include "tools/run_sources.h"

namespace lockstep::tools {

struct RunArguments {
  RunOptions run;
  // What has to be read with others.
  std::string numa_binding;
  std::string config;
  ProgramStyle style;
  bool prefix = false;
  bool no_prefix = false;
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
  // What was given, each as "--name=value", or "--name" of a flag.
  std::vector<std::string> given() const;
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
  CLI::Option* number(const char* name, int least, int most, std::function<void(int)> take, const char* text);
  CLI::Option* seconds(const char* name, double least, std::function<void(std::chrono::milliseconds)> take,
                       const char* text);
  // `take` throws CLI::Error if it cannot read the text.
  CLI::Option* read(const char* name, std::function<void(const std::string&)> take, const char* text);
  CLI::Option* unused(const char* name, const char* text);
  CLI::Option* flag(const char* name, bool& value, const char* text);
  CLI::Option* common(CLI::Option* option);

  bool all_;
  CLI::App app_{"", "lockstep"};
  CLI::App* run_;
  RunArguments arguments_;
  bool help_all_ = false;
  std::string unused_;  // the value of options that have no effect
};

}  // namespace lockstep::tools
