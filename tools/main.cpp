// The `lockstep` command: reads the command line and hands over to one function per subcommand.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/launch/cores.h"
#include "lockstep/launch/outcome.h"
#include "lockstep/observe/process_recorder.h"
#include "tools/doctor_command.h"
#include "tools/jobs_command.h"
#include "tools/run_command.h"
#include "tools/trace_command.h"

namespace {

using namespace lockstep::tools;

constexpr const char* kExamples =
    "Examples:\n"
    "  lockstep run --nproc-per-node 4 ./train --epochs 10\n"
    "  lockstep run --nproc-per-node auto --log-dir logs -- ./train --epochs 10\n"
    "  lockstep run --nproc-per-node 2 --env OMP_NUM_THREADS=4 python3 train.py\n";

// Options as they are written, before they are checked.
struct RunArguments {
  std::string ranks = "1";
  std::string nodes = "1";
  int node_rank = -1;
  std::vector<std::string> rdzv_config;
  double shutdown_timeout_seconds = 5;
  double stop_grace_seconds = 25;
  std::string signals;
  double hang_timeout_seconds = 0;
  std::vector<std::string> environment;
  bool prefix = false;
  bool no_prefix = false;
  bool ignored = false;
  RunOptions run;
};

int parse_ranks(const std::string& text) {
  if (text == "auto" || text == "cpu") return lockstep::internal::available_cores();
  if (text == "gpu") {
    throw CLI::ValidationError("--nproc-per-node", "'gpu' is not supported; give the number of GPUs");
  }
  int ranks = 0;
  if (!CLI::detail::lexical_cast(text, ranks) || ranks < 1 || ranks > 1024) {
    throw CLI::ValidationError("--nproc-per-node", "'" + text + "' is not a number from 1 to 1024, 'auto' or 'cpu'");
  }
  return ranks;
}

// "2" or "1:4"
lockstep::tools::NodeRange parse_nodes(const std::string& text) {
  const std::size_t colon = text.find(':');
  lockstep::tools::NodeRange nodes;
  const std::string most = colon == std::string::npos ? text : text.substr(colon + 1);
  if (!CLI::detail::lexical_cast(text.substr(0, colon), nodes.least) || !CLI::detail::lexical_cast(most, nodes.most) ||
      nodes.least < 1 || nodes.most < nodes.least || nodes.most > 65536) {
    throw CLI::ValidationError("--nnodes", "'" + text + "' is not a number of hosts, or MIN:MAX");
  }
  return nodes;
}

std::pair<std::string, std::string> parse_variable(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw CLI::ValidationError("--env", "'" + text + "' is not KEY=VALUE");
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

// "SIGTERM,SIGUSR1"
std::vector<int> parse_signals(const std::string& text) {
  std::vector<int> signals;
  for (const std::string& name : CLI::detail::split(text, ',')) {
    if (name.empty()) continue;
    int found = 0;
    for (int signal = 1; signal < SIGRTMIN && found == 0; ++signal) {
      if (lockstep::internal::signal_name(signal) == name) found = signal;
    }
    if (found == 0 || found == SIGKILL || found == SIGSTOP || found == SIGCHLD || found == SIGTSTP) {
      throw CLI::ValidationError("--signals-to-handle", "'" + name + "' is no signal that can ask a job to stop");
    }
    signals.push_back(found);
  }
  return signals;
}

CLI::App* add_run(CLI::App& app, RunArguments& arguments) {
  CLI::App* run = app.add_subcommand("run",
                                     "Start the ranks of a job on this machine:\n"
                                     "  lockstep run [OPTIONS] [--] program [arguments...]");
  run->footer(kExamples);
  run->add_option("--nproc-per-node,--nproc_per_node", arguments.ranks,
                  "Ranks to start: a number, or 'auto' or 'cpu' for one per available core (default 1)");
  run->add_option("--shutdown-timeout,--shutdown_timeout", arguments.shutdown_timeout_seconds,
                  "Seconds that ranks get from SIGTERM to SIGKILL (default 5)")
      ->check(CLI::Range(0.0, 86400.0));
  run->add_option("--log-dir,--log_dir", arguments.run.output.log_directory,
                  "Also write each rank's output to DIR/rank_<r>.stdout.log and .stderr.log, replacing what is there");
  run->add_option("--env", arguments.environment, "Set KEY=VALUE for all ranks; may be repeated")
      ->allow_extra_args(false);
  CLI::Option* prefix =
      run->add_flag("--prefix", arguments.prefix, "Put [rank] before every line (default: if several)");
  run->add_option("--flight", arguments.run.flight,
                  "Write what each rank did last to DIR, however the job ends, for 'lockstep trace' (default: "
                  "LOCKSTEP_FLIGHT; without it only if the job fails, to ~/.local/state/lockstep/flight, where the "
                  "last 20 jobs stay for 7 days)");
  run->add_flag("--no-prefix,--no_prefix", arguments.no_prefix, "Do not; lines stay whole")->excludes(prefix);
  run->add_option("--master-addr,--master_addr", arguments.run.master_addr,
                  "MASTER_ADDR for the ranks (default 127.0.0.1)");
  run->add_option("--master-port,--master_port", arguments.run.master_port,
                  "MASTER_PORT for the ranks (default: one that is free)")
      ->check(CLI::Range(1, 65535));
  run->add_option("--max-restarts,--max_restarts", arguments.run.max_restarts,
                  "Restarts of the whole job after a failure (default 0)")
      ->check(CLI::Range(0, 1'000'000'000));
  run->add_option("--stop-grace,--stop_grace", arguments.stop_grace_seconds,
                  "Seconds that ranks get to save their work when the job is told to stop (default 25)")
      ->check(CLI::Range(0.0, 86400.0));
  run->add_option("--signals-to-handle,--signals_to_handle", arguments.signals,
                  "Signals that ask the job to stop (default SIGTERM,SIGINT,SIGHUP,SIGQUIT)");
  run->add_option("--hang-timeout,--hang_timeout", arguments.hang_timeout_seconds,
                  "Seconds after which a job that hangs ends (exit code 4) or restarts (default: it is only told of)")
      ->check(CLI::Range(0.1, 1e9));
  run->add_option("--report", arguments.run.report, "Write how the job ended to FILE, as JSON");
  run->add_option("--rdzv-id,--rdzv_id", arguments.run.rdzv_id, "TORCHELASTIC_RUN_ID for the ranks");
  run->add_option("--nnodes", arguments.nodes, "Hosts of the job: a number, or MIN:MAX (default 1)");
  run->add_option("--node-rank,--node_rank", arguments.node_rank, "This host's number (default: any)")
      ->check(CLI::Range(0, 65535));
  run->add_option("--rdzv-endpoint,--rdzv_endpoint", arguments.run.rdzv_endpoint,
                  "HOST:PORT where the launchers of all hosts meet; on HOST one of them listens");
  run->add_option("--rdzv-conf,--rdzv_conf", arguments.rdzv_config, "KEY=VALUE: join_timeout, last_call_timeout")
      ->delimiter(',')
      ->allow_extra_args(false);
  run->add_option("--local-addr,--local_addr", arguments.run.local_addr, "The address by which others reach this host");
  run->add_flag("--standalone", arguments.ignored, "Accepted for torchrun's sake: it is always so");
  run->add_flag("--no-python,--no_python", arguments.ignored, "Accepted for torchrun's sake: it is always so");
  return run;
}

CLI::App* add_trace(CLI::App& app, TraceOptions& options) {
  CLI::App* trace = app.add_subcommand("trace", "Tell where each rank of a job was: in which collective, and how far");
  trace->add_option("--flight", options.flight, "The directory with the ranks' flight recordings")->required();
  trace->add_option("--last", options.last_operations, "Operations of each rank to show (default 10)");
  trace->add_flag("--json", options.json, "Print JSON");
  trace->prefix_command(false);
  return trace;
}

// What CLI11 did not recognise. Its prefix mode keeps the program and its arguments there; what follows a "--" that
// stands before the program ends up with the parent.
std::vector<std::string> take_program(const CLI::App& app, const CLI::App& run) {
  std::vector<std::string> program = run.remaining();
  if (!program.empty() && program.front().starts_with('-')) {
    throw CLI::ExtrasError("run", {program.front()});
  }
  if (program.empty()) program = app.remaining();
  if (program.empty() || program.front().empty()) throw CLI::RequiredError("a program to run");
  return program;
}

void check_command(const CLI::App& app) {
  if (!app.get_subcommands().empty()) return;
  const std::vector<std::string> rest = app.remaining();
  if (rest.empty()) throw CLI::RequiredError("a command");
  const char* kind = rest.front().starts_with('-') ? "option" : "command";
  throw CLI::ParseError(std::string("unknown ") + kind + " '" + rest.front() + "'", CLI::ExitCodes::ExtrasError);
}

void finish_run(const CLI::App& app, const CLI::App& run, RunArguments& arguments) {
  RunOptions& options = arguments.run;
  options.program = take_program(app, run);
  options.ranks = parse_ranks(arguments.ranks);
  options.nodes = parse_nodes(arguments.nodes);
  if (arguments.node_rank >= 0) options.node_rank = arguments.node_rank;
  for (const std::string& text : arguments.rdzv_config) options.rdzv_config.push_back(parse_variable(text));
  if (options.rdzv_endpoint.empty() && options.nodes.most > 1) {
    throw CLI::ValidationError("--nnodes", "several hosts meet at --rdzv-endpoint HOST:PORT, which is missing");
  }
  options.shutdown_timeout = std::chrono::milliseconds(std::llround(arguments.shutdown_timeout_seconds * 1000));
  options.stop_grace = std::chrono::milliseconds(std::llround(arguments.stop_grace_seconds * 1000));
  if (arguments.hang_timeout_seconds > 0) {
    options.hang_timeout = std::chrono::milliseconds(std::llround(arguments.hang_timeout_seconds * 1000));
  }
  options.signals_to_handle = parse_signals(arguments.signals);
  if (options.flight.empty()) {
    options.flight =
        lockstep::internal::EnvironmentReader().text(lockstep::internal::kFlightDirectoryVariable).value_or("");
  }
  for (const std::string& text : arguments.environment) options.environment.push_back(parse_variable(text));
  if (arguments.prefix) options.output.prefix = lockstep::internal::PrefixMode::always;
  if (arguments.no_prefix) options.output.prefix = lockstep::internal::PrefixMode::never;
}

int usage_error(const CLI::Error& error, const char* help) {
  std::fprintf(stderr, "lockstep: %s\nTry '%s'.\n", error.what(), help);
  return lockstep::tools::kUsageExitCode;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Distributed data parallel training for C++", "lockstep");
  app.footer(kExamples);
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  app.require_subcommand(0, 1);
  app.prefix_command();
  RunArguments arguments;
  const CLI::App* run = add_run(app, arguments);
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
  try {
    app.parse(argc, argv);
    check_command(app);
    if (run->parsed()) finish_run(app, *run, arguments);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::Error& error) {
    return usage_error(error, run->parsed()      ? "lockstep run --help"
                              : trace->parsed()  ? "lockstep trace --help"
                              : doctor->parsed() ? "lockstep doctor --help"
                                                 : "lockstep --help");
  }
  if (trace->parsed()) return lockstep::tools::trace_command(trace_options);
  if (doctor->parsed()) return doctor_command(doctor_options);
  if (env->parsed()) return env_command(env_options);
  if (ps->parsed()) return ps_command(ps_options);
  if (top->parsed()) return top_command(top_options);
  return lockstep::tools::run_command(arguments.run);
}
