#include "tools/run_parser.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "tools/option_hint.h"
#include "tools/run_arguments.h"
#include "tools/run_over_ssh.h"
#include "tools/run_values.h"
#include "tools/seconds_range.h"

namespace lockstep::tools {
namespace {

constexpr const char* kCommonGroup = "Common options";
const std::string kRanks = "-n";

// "--nproc-per-node" in torchrun's other spelling, too.
std::string both_spellings(const std::string& name) {
  std::string other = name;
  const std::size_t begin = other.rfind("--") + 2;
  std::replace(other.begin() + static_cast<std::ptrdiff_t>(begin), other.end(), '-', '_');
  return other == name ? name : name + "," + other.substr(begin - 2);
}

// CLI11 alone reads "010" as octal.
CLI::Validator whole_number(int least, int most) {
  return {[least, most](std::string& text) {
            int value = 0;
            const char* const last = text.data() + text.size();
            const auto [end, error] = std::from_chars(text.data(), last, value);
            const std::string range = std::to_string(least) + " to " + std::to_string(most);
            if (error != std::errc() || end != last || value < least || value > most) {
              return "'" + text + "' is not a number from " + range;
            }
            text = std::to_string(value);
            return std::string();
          },
          "NUMBER"};
}

// node_exporter passes over all others, without a word.
const CLI::Validator kPromFile(
    [](std::string& text) {
      return text.ends_with(".prom")
                 ? std::string()
                 : fmt::format("'{}' does not end with .prom: node_exporter reads only such files", text);
    },
    "FILE");

// What has no effect here is refused all the same if torchrun does not know it: it may be meant for another option.
CLI::Validator known(const std::vector<std::string>& names, const std::string& meaning) {
  return {[names, meaning](std::string& text) {
            if (std::ranges::find(names, text) != names.end()) return std::string();
            return fmt::format("'{}' is not known; there {} {}: {}", text, names.size() == 1 ? "is" : "are",
                               fmt::join(names, ", "), meaning);
          },
          "NAME"};
}

// Errors of what reads the value.
template <class Read>
auto or_refuse(const char* option, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    const std::string_view text = error.what();
    throw text.starts_with(option) ? CLI::ValidationError(error.what()) : CLI::ValidationError(option, error.what());
  }
}

}  // namespace

RunParser::RunParser(bool all) : all_(all), run_(app_.add_subcommand("run", kRunSummary)) {
  app_.require_subcommand(0, 1);
  app_.prefix_command();
  run_->prefix_command();
  run_->description(std::string(kRunSummary) + ":\n  lockstep run [OPTIONS] [--] program [arguments...]");
  run_->footer(all ? kRunExamples : std::string("All options: lockstep run --help-all\n\n") + kRunExamples);
  run_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  run_->add_flag("--help-all", help_all_, "Show all options")->group(kCommonGroup);
  run_->get_help_ptr()->group(kCommonGroup);
  add_ranks();
  add_hosts();
  add_ends();
  add_output();
  add_program();
}

CLI::Option* RunParser::common(CLI::Option* option) { return option->group(kCommonGroup); }

CLI::Option* RunParser::option(const char* name, std::string& value, const char* text) {
  return run_->add_option(both_spellings(name), value, text)->group(all_ ? "More options" : "");
}

CLI::Option* RunParser::read(const char* name, std::function<void(const std::string&)> take, const char* text) {
  return run_->add_option_function<std::string>(both_spellings(name), std::move(take), text)
      ->group(all_ ? "More options" : "");
}

CLI::Option* RunParser::number(const char* name, int least, int most, std::function<void(int)> take, const char* text) {
  return run_->add_option_function<int>(both_spellings(name), std::move(take), text)
      ->group(all_ ? "More options" : "")
      ->transform(whole_number(least, most));
}

CLI::Option* RunParser::seconds(const char* name, double least, std::function<void(std::chrono::milliseconds)> take,
                                const char* text) {
  const auto rounded = [take = std::move(take)](double value) {
    take(std::chrono::milliseconds(std::llround(value * 1000)));
  };
  return run_->add_option_function<double>(both_spellings(name), rounded, text)
      ->group(all_ ? "More options" : "")
      ->check(seconds_range(least));
}

CLI::Option* RunParser::unused(const char* name, const char* text) { return option(name, unused_, text); }

CLI::Option* RunParser::flag(const char* name, bool& value, const char* text) {
  return run_->add_flag(both_spellings(name), value, text)->group(all_ ? "More options" : "");
}

void RunParser::add_ranks() {
  RunOptions& to = arguments_.run;
  common(read(
      "-n,--nproc-per-node", [&to](const std::string& text) { to.agent.job.ranks = parse_ranks(text); },
      "Ranks on this host: a number; auto: one per GPU, or without GPUs one per physical core; cpu: one per core; gpu: "
      "one per GPU (default 1)"));
  common(run_->add_option_function<std::vector<std::string>>(
                 "--env",
                 [&to](const std::vector<std::string>& all) {
                   for (const std::string& each : all)
                     to.agent.job.environment.push_back(parse_variable("--env", each));
                 },
                 "Set KEY=VALUE for all ranks; may be repeated")
             ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
             ->allow_extra_args(false));
  option("--bind", to.bind, "Bind each rank to its own cores: core, socket, numa or none (default none)");
  option("--numa-binding", arguments_.numa_binding,
         "As --bind, with torchrun's values: node, socket, exclusive, core-complex")
      ->check(CLI::IsMember({"node", "socket", "exclusive", "core-complex"}));
  read(
      "--memory-per-rank", [&to](const std::string& text) { to.limits.memory_bytes = parse_memory(text); },
      "Memory limit of a rank and its child processes: 8GiB, 500M (by a cgroup; default: no limit)");
  read(
      "--cpus-per-rank", [&to](const std::string& text) { to.limits.cpus = parse_cpus(text); },
      "CPU limit of a rank and its child processes: 2, 0.5 (by a cgroup; default: no limit)");
  option("--role", to.agent.job.role, "ROLE_NAME for the ranks (default 'default')");
  flag("--virtual-local-rank", to.agent.job.virtual_local_rank, "Each rank sees only one GPU, and LOCAL_RANK is 0");
  unused("--start-method", "Accepted for compatibility with torchrun: a rank is always a new process")
      ->check(CLI::IsMember({"spawn", "fork", "forkserver"}));
}

void RunParser::add_hosts() {
  RunOptions& to = arguments_.run;
  common(read(
      "--nnodes",
      [&to](const std::string& text) {
        std::tie(to.agent.machine.least, to.agent.machine.most) = parse_nodes(text);
        to.chooses_nodes = true;
      },
      "Hosts of the job: a number, or MIN:MAX (default 1)"));
  common(option("--rdzv-endpoint", to.rdzv_endpoint,
                "HOST:PORT where the launchers of all hosts meet; the one on HOST listens (default port 29400)"));
  common(read(
      "--hosts",
      [&to](const std::string& text) {
        // As of a variable that is not set, it would be a job of this host alone.
        if (text.empty()) throw CLI::ValidationError("--hosts", "the list is empty");
        to.hosts = or_refuse("--hosts", [&] { return parse_hosts(text); });
      },
      "Start launchers on these hosts, over ssh: a,b or a:4,b:8 with their ranks"));
  option("--remote-path", to.remote_path, "Path of lockstep on these hosts (default: the same as here)");
  number(
      "--node-rank", 0, 65535, [&to](int value) { to.agent.node_rank = value; }, "This host's number (default: any)");
  option("--rdzv-id", to.rdzv_id, "The job's name: jobs of different names can meet at one endpoint");
  read(
      "--rdzv-conf", [&to](const std::string& text) { to.rdzv_config = parse_config("--rdzv-conf", text); },
      "KEY=VALUE,...: join_timeout (600): seconds within which all hosts have to join; last_call_timeout (30): seconds "
      "that MIN hosts wait for more; host_timeout (3): seconds of silence until a host is lost; loss_interval "
      "(600): seconds within which another loss of the same host costs a restart");
  unused("--rdzv-backend", "c10d, static, etcd or etcd-v2: accepted for compatibility with torchrun, no effect")
      ->check(known({"c10d", "static", "etcd", "etcd-v2"}, "all of them have the same effect"));
  flag("--standalone", to.standalone,
       "Run on this host only, even under a cluster manager; --rdzv-* options are ignored");
  option("--local-addr", to.agent.local_addr, "The address by which other hosts reach this one");
  option("--master-addr", to.agent.master_addr, "MASTER_ADDR for the ranks (default: the first host)");
  number(
      "--master-port", 1, 65535, [&to](int value) { to.agent.master_port = value; },
      "MASTER_PORT for the ranks (default: a free one)");
}

void RunParser::add_ends() {
  RunOptions& to = arguments_.run;
  common(number(
      "--max-restarts", 0, 1'000'000'000, [&to](int value) { to.agent.machine.max_restarts = value; },
      "Restarts of the whole job after a failure (default 0)"));
  seconds(
      "--hang-timeout", 0.1, [&to](auto value) { to.hang_timeout = value; },
      "Seconds after which a job that hangs ends (exit code 4) or restarts (default: report only)");
  seconds(
      "--shutdown-timeout", 0, [&to](auto value) { to.agent.grace = value; },
      "Seconds that ranks get from SIGTERM to SIGKILL after a failure (default 5)");
  number(
      "--stop-exit-code", 0, 255, [&to](int value) { to.agent.machine.stop_exit_code = value; },
      "Exit code of a job that is asked to stop before its end (default 75: try again later)");
  seconds(
      "--stop-grace", 0, [&to](auto value) { to.agent.stop_grace = value; },
      "Seconds that ranks get to save their work when the job is asked to stop (default 25)");
  read(
      "--signals-to-handle",
      [&to](const std::string& text) { to.signals_to_handle = parse_signals("--signals-to-handle", text); },
      "Signals that ask the job to stop (default SIGTERM,SIGINT,SIGHUP,SIGQUIT)");
  option("--report", to.report, "Write how the job ended to FILE, as JSON");
  read(
      "--metrics-port",
      [&to](const std::string& text) {
        to.metrics.endpoint = or_refuse("--metrics-port", [&] { return parse_metrics_port(text); });
      },
      "Serve /metrics, for Prometheus, and /healthz: PORT of 127.0.0.1, or ADDRESS:PORT; port 0: a free one")
      ->type_name("PORT");
  option("--metrics-textfile", to.metrics.textfile,
         "Write the same metrics to FILE every 5 s, for node_exporter: a name that ends with .prom")
      ->check(kPromFile);
  option("--on-event", to.on_event,
         "Run PROGRAM, without arguments, when the job starts, restarts, loses a host, is asked to stop, and ends; a "
         "JSON object on its standard input describes the event");
  option("--flight", to.agent.flight,
         "Write the last operations of each rank to DIR, however the job ends, for 'lockstep trace' (default: "
         "LOCKSTEP_FLIGHT; without it only of attempts that fail, to ~/.local/state/lockstep/flight, where the last 20 "
         "jobs are kept for 7 days, and of each the first attempt and the last 3)");
  seconds(
      "--monitor-interval", 0, [](auto) {},
      "Accepted for compatibility with torchrun, no effect: the end of a rank is noticed at once");
  unused("--event-log-handler", "Accepted for compatibility with torchrun, no effect; see --report and --on-event");
}

void RunParser::add_output() {
  RankOutputOptions& to = arguments_.run.agent.output;
  common(option("--log-dir", to.log_directory,
                "Write each rank's output to DIR/rank_<r>.stdout.log and .stderr.log, replacing existing files"));
  option("--log-format", arguments_.run.log_format,
         "text, or json: each line an object with time, level, host, rank, attempt and message (default: "
         "LOCKSTEP_LOG_FORMAT, else text)")
      ->check(CLI::IsMember({"text", "json"}));
  common(flag("--prefix", arguments_.prefix, "Prefix every line with [rank] (default: if there are several ranks)"));
  common(flag("--no-prefix", arguments_.no_prefix, "Do not prefix lines with the rank"));
  const auto streams = [this, &to](const char* name, std::map<int, int>& chosen, const char* text) {
    const std::string option = name + std::string(name).rfind("--");
    const auto take = [&to, &chosen, option](const std::string& given) {
      chosen = parse_streams(option, given);
      to.chooses_streams = to.chooses_streams || !given.empty();
    };
    read(name, take, text);
  };
  streams("-r,--redirects", to.redirects,
          "Streams that go to log files and are not shown: 0 none, 1 output, 2 error, 3 both; or for local ranks: "
          "0:1,1:3");
  streams("-t,--tee", to.tee, "Streams that go to log files and are shown, in the same form");
  read(
      "--local-ranks-filter",
      [&to](const std::string& text) { to.shown_ranks = parse_local_ranks("--local-ranks-filter", text); },
      "Show the output of these local ranks only: 0,2");
  read(
      "--duplicate-stdout-filters", [&to](const std::string& text) { to.duplicated[0] = parse_filters(text); },
      "Also write lines of standard output that contain one of these texts to filtered_stdout.log: apple,orange");
  read(
      "--duplicate-stderr-filters", [&to](const std::string& text) { to.duplicated[1] = parse_filters(text); },
      "Also write lines of standard error that contain one of these texts to filtered_stderr.log: apple,orange");
  unused("--logs-specs", "Only default, which is accepted for compatibility with torchrun and has no effect")
      ->check(known({"default"}, "others are Python classes, which this launcher does not load"));
}

void RunParser::add_program() {
  RunArguments& to = arguments_;
  common(flag("-m,--module", to.style.module, "The program is the name of a Python module"));
  flag("--no-python", to.style.no_python, "Start a .py file directly, without Python");
  flag("--run-path", to.style.run_path, "Start a Python script by runpy.run_path()");
  common(option("--config", to.config, "Read options from FILE (TOML); the command line takes precedence"));
  common(flag("--dry-run", to.run.dry_run, "Print the processes that would be started, without starting them"));
}

void RunParser::parse(const std::vector<std::string>& words) {
  const std::vector<std::string> all = with_empty_values(words);
  app_.parse(std::vector<std::string>(all.rbegin(), all.rend()));
}

// CLI11 takes the word behind "--option=" for its value, which is empty: it becomes a word of its own.
std::vector<std::string> RunParser::with_empty_values(const std::vector<std::string>& words) const {
  std::vector<std::string> all(words.begin(), words.begin() + 1);
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i] == "-np" ? kRanks : words[i];  // as mpirun's users write it
    if (word == "--" || !word.starts_with('-')) {                     // the program
      all.insert(all.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      break;
    }
    const std::size_t equals = word.find('=');
    const CLI::Option* option = run_->get_option_no_throw(word.substr(0, equals));
    const bool has_value = option != nullptr && option->get_expected_max() > 0;
    all.push_back(has_value && equals + 1 == word.size() ? word.substr(0, equals) : word);
    if (!has_value || (equals != std::string::npos && equals + 1 != word.size())) continue;
    if (equals != std::string::npos) {
      all.emplace_back();
    } else if (++i < words.size()) {
      all.push_back(words[i]);
    }
  }
  return all;
}

OptionNames RunParser::names() const {
  OptionNames names;
  for (const CLI::Option* each : static_cast<const CLI::App*>(run_)->get_options()) {
    for (const std::string& name : each->get_lnames()) {
      const std::string option = "--" + name;
      if (name == "help" || name == "help-all" || name == "config") continue;
      names.options.push_back(option);
      if (each->get_expected_max() == 0) names.flags.insert(option);
      if (each->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll) names.lists.insert(option);
    }
  }
  return names;
}

std::vector<std::string> RunParser::given() const {
  std::vector<std::string> given;
  for (const CLI::Option* each : static_cast<const CLI::App*>(run_)->get_options()) {
    if (each->count() == 0 || each->get_lnames().empty()) continue;
    const std::string name = "--" + each->get_lnames().front();
    if (each->get_expected_max() == 0) {
      if (each->as<bool>()) given.push_back(name);
    } else if (each->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll) {
      for (const std::string& value : each->results()) given.push_back(name + "=" + value);
    } else {
      given.push_back(name + "=" + each->results().back());
    }
  }
  return given;
}

// What CLI11 did not recognise. Its prefix mode keeps the program and its arguments there; what follows a "--" that
// stands before the program ends up with the parent.
std::vector<std::string> RunParser::program() const {
  std::vector<std::string> program = run_->remaining();
  if (!program.empty() && program.front().starts_with('-')) {
    const std::string& word = program.front();
    throw CLI::ParseError(fmt::format("unknown option '{}'{}", word, option_hint(word, names().options)),
                          CLI::ExitCodes::ExtrasError);
  }
  if (program.empty()) program = app_.remaining();
  if (program.empty() || program.front().empty()) throw CLI::RequiredError("a program to run");
  return program;
}

}  // namespace lockstep::tools
