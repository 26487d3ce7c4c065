// The `lockstep` command: reads the command line and hands over to one function per subcommand.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "lockstep/base/nearest_name.h"
#include "lockstep/job/launch/remote_order.h"
#include "tools/checkpoint_command.h"
#include "tools/doctor_command.h"
#include "tools/jobs_command.h"
#include "tools/report_command.h"
#include "tools/run_arguments.h"
#include "tools/run_command.h"
#include "tools/run_over_ssh.h"
#include "tools/standard_output.h"
#include "tools/stop_command.h"
#include "tools/trace_command.h"

namespace {

using namespace lockstep::tools;

constexpr std::size_t kMistypedLetters = 2;  // letters of a command

void check_command(const CLI::App& app) {
  if (!app.get_subcommands().empty()) return;
  const std::vector<std::string> rest = app.remaining();
  if (rest.empty()) throw CLI::RequiredError("a command");
  const std::string& word = rest.front();
  const bool is_option = word.starts_with('-');
  std::vector<std::string> commands;
  for (const CLI::App* each : app.get_subcommands({})) commands.push_back(each->get_name());
  const auto meant = is_option ? std::nullopt : lockstep::internal::nearest_name(word, commands, kMistypedLetters);
  const std::string hint = meant ? "; did you mean " + *meant + "?" : "";
  throw CLI::ParseError(std::string("unknown ") + (is_option ? "option" : "command") + " '" + word + "'" + hint,
                        CLI::ExitCodes::ExtrasError);
}

int usage_error(const CLI::Error& error, const CLI::App& app) {
  std::string command;
  for (std::vector<CLI::App*> commands = app.get_subcommands(); !commands.empty();) {
    command += commands.front()->get_name() + " ";
    commands = commands.front()->get_subcommands();
  }
  std::fprintf(stderr, "lockstep: %s\nTry 'lockstep %s--help'.\n", error.what(), command.c_str());
  return lockstep::tools::kUsageExitCode;
}

void print_all_help(const CLI::App& app) {
  print(app.help());
  for (const CLI::App* command : app.get_subcommands({})) {
    const std::string& name = command->get_name();
    print("\nlockstep " + name + "\n\n" + (name == "run" ? help_of_run() : command->help(app.get_name())));
    for (const CLI::App* verb : command->get_subcommands({})) {
      const std::string verb_name = name + " " + verb->get_name();
      print("\nlockstep " + verb_name + "\n\n" + verb->help(app.get_name() + " " + name));
    }
  }
}

// Reads the command line of all commands but `run`, which has a parser of its own, and does what it says.
int run_other(int argc, char** argv) {
  CLI::App app("Distributed data parallel training for C++", "lockstep");
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  app.require_subcommand(0, 1);
  app.prefix_command();
  app.add_subcommand("run", kRunSummary);  // here for the help
  TraceOptions trace_options;
  const CLI::App* trace = add_trace(app, trace_options);
  DoctorOptions doctor_options;
  const CLI::App* doctor = add_doctor(app, doctor_options);
  EnvOptions env_options;
  const CLI::App* env = add_env(app, env_options);
  PsOptions ps_options;
  const CLI::App* ps = add_ps(app, ps_options);
  TopOptions top_options;
  const CLI::App* top = add_top(app, top_options);
  StopOptions stop_options;
  const CLI::App* stop = add_stop(app, stop_options);
  CheckpointOptions checkpoint_options;
  const CLI::App* checkpoint = add_checkpoint(app, checkpoint_options);
  ReportOptions report_options;
  const CLI::App* report = add_report(app, report_options);
  // Last, since commands inherit both.
  app.set_help_all_flag("--help-all", "Print the help of all commands and exit");
  app.footer(kRunExamples);
  try {
    app.parse(argc, argv);
    check_command(app);
  } catch (const CLI::CallForAllHelp&) {
    print_all_help(app);
    return end_standard_output(EXIT_SUCCESS, EXIT_FAILURE);
  } catch (const CLI::Success& success) {
    std::ostringstream text;
    const int code = app.exit(success, text);
    print(text.str());
    return end_standard_output(code, EXIT_FAILURE);
  } catch (const CLI::Error& error) {
    return usage_error(error, app);
  }
  if (checkpoint->parsed()) return checkpoint_command(*checkpoint, checkpoint_options);
  int code = EXIT_SUCCESS;
  if (trace->parsed()) code = lockstep::tools::trace_command(trace_options);
  if (doctor->parsed()) code = doctor_command(doctor_options);
  if (env->parsed()) code = env_command(env_options);
  if (ps->parsed()) code = ps_command(ps_options);
  if (top->parsed()) code = top_command(top_options);
  if (stop->parsed()) code = stop_command(stop_options);
  if (report->parsed()) code = report_command(report_options);
  return end_standard_output(code, EXIT_FAILURE);
}

int run_lockstep(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == lockstep::internal::kRemoteCommand) return remote_host_command();
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (words.empty() || words.front() != "run") {
    prepare_standard_output();
    return run_other(argc, argv);
  }
  int exit_code = 0;
  const std::optional<RunOptions> options = read_run(words, exit_code);
  return options ? run_command(*options) : end_standard_output(exit_code, EXIT_FAILURE);
}

}  // namespace

int main(int argc, char** argv) {
  // Beyond a limit on file sizes a write fails, also that of a message, and the exit code still tells what has
  // happened. Not SIG_IGN: ranks would inherit it.
  std::signal(SIGXFSZ, [](int) {});
  try {
    return run_lockstep(argc, argv);
  } catch (const std::system_error& error) {  // no thread can be made
    std::fprintf(stderr, "lockstep: %s (is the limit on processes reached?)\n", error.what());
  } catch (const std::exception& error) {  // no memory
    std::fprintf(stderr, "lockstep: %s\n", error.what());
  }
  return kRendezvousExitCode;
}
