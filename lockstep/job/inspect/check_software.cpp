#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/net/token.h"
#include "lockstep/comm/rendezvous/launchers.h"
#include "lockstep/job/inspect/checks.h"
#include "lockstep/job/inspect/run_and_read.h"

namespace lockstep::internal {
namespace {

// Whether a token can be made there, which the first job does.
Finding token_to_be_made(const std::string& home) {
  const std::string folder = home + "/.lockstep";
  const bool has_folder = ::access(folder.c_str(), F_OK) == 0;
  if (!home.empty() && ::access((has_folder ? folder : home).c_str(), W_OK | X_OK) == 0) {
    return {.subject = "token", .found = fmt::format("{}/token is created at the first use", folder)};
  }
  return {Verdict::warning, "token",
          home.empty() ? std::string("this user has no home folder in which to keep it")
                       : fmt::format("{}/token cannot be created: {}", folder, std::strerror(errno)),
          "a job on one host keeps its token in $XDG_RUNTIME_DIR or /tmp; for several hosts, set LOCKSTEP_TOKEN_FILE "
          "on each to a copy of the same file, mode 0600"};
}

// Looks, and makes none.
Finding token(const EnvironmentReader& reader) {
  std::string path = reader.text("LOCKSTEP_TOKEN_FILE").value_or("");
  const bool own = path.empty();
  const std::string home = reader.text("HOME").value_or("");
  if (own) path = home + "/.lockstep/token";
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (own) return token_to_be_made(home);
    return {Verdict::error, "token", fmt::format("{}, which LOCKSTEP_TOKEN_FILE names, does not exist", path),
            "copy ~/.lockstep/token of the host that starts the job to it"};
  }
  try {
    Token::from_file(path);
    return {.subject = "token", .found = fmt::format("{} can be used; all hosts of a job need the same token", path)};
  } catch (const Error& error) {
    return {Verdict::error, "token", error.what(), fmt::format("chmod 600 {}, or copy it again", path)};
  }
}

Finding variables() {
  const std::vector<std::string> unknown = describe_unknown_variables(environ);
  if (unknown.empty()) return {.subject = "variables", .found = "all LOCKSTEP_ variables are known"};
  return {Verdict::warning, "variables", fmt::format("{}", fmt::join(unknown, "; ")), "unset or correct them"};
}

Finding launchers(const MachineFacts& facts) {
  std::vector<std::string> found;
  for (const char* name : {"srun", "sbatch", "mpirun", "mpiexec.hydra", "flux", "kubectl", "torchrun", "ssh"}) {
    if (const std::string path = facts.program(name); !path.empty()) found.push_back(path);
  }
  return {.subject = "launchers", .found = found.empty() ? "only this one" : fmt::format("{}", fmt::join(found, ", "))};
}

Finding started_by(const EnvironmentReader& reader) {
  try {
    std::vector<std::string> launches;
    for (const Launch& launch : find_launches(reader)) launches.push_back(to_string(launch));
    if (launches.empty()) return {.subject = "started by", .found = "no other launcher"};
    return {.subject = "started by", .found = fmt::format("{}", fmt::join(launches, "; "))};
  } catch (const Error& error) {
    return {Verdict::error, "started by", error.what(), "correct or unset these variables"};
  }
}

// "  libtorch_cpu.so => /usr/lib/libtorch_cpu.so (0x...)"
std::string linked(const std::string& text, const std::string& library) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find(library + " => ");
    if (at == std::string::npos) continue;
    const std::string path = line.substr(at + library.size() + 4);
    return path.substr(0, path.find(" ("));
  }
  return "";
}

// "2.13.0+cpu" -> "2.13.0"
std::string release_of(const std::string& version) { return version.substr(0, version.find('+')); }

// C++ of one release of libtorch does not fit another's.
void compare_versions(Finding& finding, const std::string& version, const SoftwareWanted& wanted) {
  if (version.empty() || wanted.torch_version.empty()) return;
  if (release_of(version) == release_of(wanted.torch_version)) return;
  finding.verdict = Verdict::warning;
  finding.found += fmt::format("; this Lockstep was built for {}", wanted.torch_version);
  finding.remedy = fmt::format("use libtorch {}, or rebuild Lockstep and the program with Torch_DIR",
                               release_of(wanted.torch_version));
}

// Of the libtorch with this library, as its wheel or its archive says it; empty if neither does.
std::string version_beside(const MachineFacts& facts, const std::string& library) {
  const std::string root = library.substr(0, library.rfind('/')) + "/../";
  if (const auto text = facts.file(root + "build-version")) return text->substr(0, text->find('\n'));
  const std::string text = facts.file(root + "version.py").value_or("");
  constexpr std::string_view kBefore = "__version__ = '";
  const std::size_t at = text.find(kBefore);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + kBefore.size();
  return text.substr(begin, text.find('\'', begin) - begin);
}

Finding libtorch_of_program(const MachineFacts& facts, const SoftwareWanted& wanted, Deadline deadline) {
  const std::string& program = wanted.program;
  const std::string subject = fmt::format("libtorch of {}", program);
  if (::access(program.c_str(), X_OK) != 0) {
    return {Verdict::error, subject, "the program cannot be executed", "give the path of your program"};
  }
  const auto text = run_and_read({"/usr/bin/ldd", program}, deadline);
  if (!text) {
    return {Verdict::warning, subject, "ldd cannot read it: is it a program for this machine?",
            fmt::format("check the output of 'file {}'", program)};
  }
  const std::string path = linked(*text, "libtorch_cpu.so");
  if (path.empty()) return {.subject = subject, .found = "it does not link libtorch"};
  if (path == "not found") {
    return {Verdict::error, subject, "libtorch_cpu.so is not found",
            "set LD_LIBRARY_PATH to libtorch's lib folder, or link with an rpath (CMake: CMAKE_BUILD_RPATH)"};
  }
  const std::string version = version_beside(facts, path);
  const std::string cuda = linked(*text, "libtorch_cuda.so");
  Finding finding{
      .subject = subject,
      .found = fmt::format("{}{}{}{}", version, version.empty() ? "" : " ", path, cuda.empty() ? "" : ", with CUDA")};
  compare_versions(finding, version, wanted);
  return finding;
}

// The version as the package's files have it: importing it takes seconds. Without torch an empty line.
constexpr const char* kFindTorch =
    "import importlib.metadata as m, importlib.util as u\n"
    "try: v = m.version('torch'); s = u.find_spec('torch'); print(v, s.origin if s else '')\n"
    "except m.PackageNotFoundError: print()";

Finding torch_of_python(const MachineFacts& facts, const SoftwareWanted& wanted, Deadline deadline) {
  const std::string python = facts.program("python3");
  Finding finding{.subject = "torch of Python"};
  if (python.empty()) {
    finding.found = "there is no python3";
    return finding;
  }
  const auto text = run_and_read({python, "-c", kFindTorch}, deadline);
  if (!text) {
    finding.verdict = Verdict::warning;
    finding.found = fmt::format("{} cannot be started, or fails", python);
    finding.remedy = fmt::format("Python scripts cannot run: check the output of '{} -c \"import site\"'", python);
    return finding;
  }
  const std::string line = text->substr(0, text->find('\n'));
  finding.found = line.empty() ? fmt::format("{} has none", python) : line;
  compare_versions(finding, line.substr(0, line.find(' ')), wanted);
  return finding;
}

Finding lockstep(const SoftwareWanted& wanted) {
  const bool has_torch = !wanted.torch_version.empty();
  return {.subject = "lockstep",
          .found = fmt::format("{}, built {}{}", wanted.version, has_torch ? "for libtorch " : "without libtorch",
                               wanted.torch_version)};
}

}  // namespace

Findings check_software(const MachineFacts& facts, const SoftwareWanted& wanted, Deadline deadline) {
  const EnvironmentReader reader(facts.environment);
  Findings findings{lockstep(wanted),   token(reader),    variables(),
                    started_by(reader), launchers(facts), torch_of_python(facts, wanted, deadline)};
  if (!wanted.program.empty()) findings.push_back(libtorch_of_program(facts, wanted, deadline));
  return findings;
}

}  // namespace lockstep::internal
