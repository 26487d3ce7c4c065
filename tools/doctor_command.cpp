#include "tools/doctor_command.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/job/inspect/checks.h"
#include "lockstep/job/launch/program_path.h"
#include "tools/doctor_hosts.h"
#include "tools/run_command.h"
#include "tools/standard_output.h"

namespace lockstep::tools {

using namespace internal;

namespace {

Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

SoftwareWanted wanted(const std::string& program) {
  return {.version = LOCKSTEP_VERSION, .torch_version = LOCKSTEP_TORCH_VERSION, .program = program};
}

std::string line_of(const MachineFacts& facts, const std::string& path, const std::string& name) {
  const std::string text = facts.file(path).value_or("");
  const std::size_t at = text.find(name);
  if (at == std::string::npos) return "";
  const std::size_t begin = text.find_first_not_of("\t :=\"", at + name.size());
  const std::size_t end = text.find_first_of("\"\n", begin);
  return begin == std::string::npos ? "" : text.substr(begin, end - begin);
}

std::vector<std::pair<std::string, std::string>> facts_for_a_report() {
  const MachineFacts facts = this_machine();
  utsname system{};
  ::uname(&system);
  std::vector<std::pair<std::string, std::string>> list{
      {"compiler", "g++ " __VERSION__},
      {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
      {"distribution", line_of(facts, "/etc/os-release", "PRETTY_NAME")},
      {"processor", line_of(facts, "/proc/cpuinfo", "model name")},
      {"gpus", facts.file("/proc/driver/nvidia/version") ? line_of(facts, "/proc/driver/nvidia/version", "version")
                                                         : "no NVIDIA driver"}};
  for (const Findings& findings :
       {check_machine(facts), check_memory(facts), check_software(facts, wanted(""), soon())}) {
    for (const Finding& finding : findings) list.emplace_back(finding.subject, finding.found);
  }
  // Names that say what a job is and not what it may: never the token.
  constexpr std::string_view kPrefixes[] = {"LOCKSTEP_", "OMP_",  "MKL_",        "TORCH_",     "TORCHELASTIC_",
                                            "CUDA_",     "NCCL_", "SLURM_JOB",   "SLURM_STEP", "PMI",
                                            "OMPI_COMM", "RANK=", "WORLD_SIZE=", "MASTER_"};
  for (const char* const* entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    for (const std::string_view prefix : kPrefixes) {
      if (text.starts_with(prefix) && equals != std::string_view::npos) {
        list.emplace_back(fmt::format("variable {}", text.substr(0, equals)), text.substr(equals + 1));
      }
    }
  }
  return list;
}

}  // namespace

CLI::App* add_doctor(CLI::App& app, DoctorOptions& options) {
  CLI::App* doctor = app.add_subcommand("doctor", "Check this machine before a job starts on it");
  doctor->add_option("program", options.program, "Also check that this program finds the right libtorch");
  doctor->add_option("--hosts", options.hosts, "Check these hosts, over ssh, and compare them: a,b");
  doctor->add_option("--remote-path", options.remote_path,
                     "Path of lockstep on these hosts (default: the same as here)");
  doctor->add_flag("--json", options.json, "Print JSON");
  doctor->add_flag("--line", options.line)->group("");
  doctor->footer(
      "Exits with 1 if a check has found an error.\n\nExamples:\n  lockstep doctor ./train\n"
      "  lockstep doctor --hosts h1,h2 ./train\n"
      "  lockstep run --nnodes 2 --rdzv-endpoint h1:29400 lockstep doctor    # each host of a job\n");
  doctor->prefix_command(false);
  return doctor;
}

namespace {

Findings check_here(const DoctorOptions& options) {
  const MachineFacts facts = this_machine();
  Findings findings = check_machine(facts);
  for (const Findings& more :
       {check_memory(facts), check_network(facts, soon()), check_software(facts, wanted(options.program), soon())}) {
    findings.insert(findings.end(), more.begin(), more.end());
  }
  return findings;
}

}  // namespace

int doctor_command(const DoctorOptions& options) {
  if (options.line) {
    print_for_hosts(check_here, options);
    return EXIT_SUCCESS;
  }
  Findings findings;
  try {
    findings = options.hosts.empty() ? check_here(options) : check_hosts(options);
  } catch (const ExecFailed& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return error.shell_code();
  } catch (const Error& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return kUsageExitCode;
  }
  print(options.json ? json_of(findings) : text_of(findings));
  return worst_of(findings) == Verdict::error ? EXIT_FAILURE : EXIT_SUCCESS;
}

CLI::App* add_env(CLI::App& app, EnvOptions& options) {
  CLI::App* env = app.add_subcommand("env", "Print the facts for a bug report, without secrets");
  env->add_flag("--json", options.json, "Print JSON");
  env->footer("Examples:\n  lockstep env\n  lockstep env --json\n");
  env->prefix_command(false);
  return env;
}

int env_command(const EnvOptions& options) {
  const auto list = facts_for_a_report();
  if (options.json) {
    nlohmann::json document = nlohmann::json::object();
    for (const auto& [name, value] : list) document[name] = value;
    print(document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else {
    for (const auto& [name, value] : list) print(fmt::format("{}: {}\n", name, value));
  }
  return EXIT_SUCCESS;
}

}  // namespace lockstep::tools
