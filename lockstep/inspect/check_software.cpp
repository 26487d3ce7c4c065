#include <sys/stat.h>
#include <unistd.h>

#include <sstream>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/inspect/checks.h"
#include "lockstep/inspect/run_and_read.h"
#include "lockstep/net/token.h"
#include "lockstep/rendezvous/launchers.h"

namespace lockstep::internal {
namespace {

// Looks, and makes none.
Finding token(const EnvironmentReader& reader) {
  std::string path = reader.text("LOCKSTEP_TOKEN_FILE").value_or("");
  const bool own = path.empty();
  if (own) path = reader.text("HOME").value_or("") + "/.lockstep/token";
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (own) return {.subject = "token", .found = fmt::format("{} is made at the first use", path)};
    return {Verdict::error, "token", fmt::format("{}, which LOCKSTEP_TOKEN_FILE names, is not there", path),
            "copy ~/.lockstep/token of the host that starts the job to it"};
  }
  try {
    Token::from_file(path);
    return {.subject = "token", .found = fmt::format("{} can be used; all hosts of a job need the same", path)};
  } catch (const Error& error) {
    return {Verdict::error, "token", error.what(), fmt::format("chmod 600 {}, or copy it anew", path)};
  }
}

Finding variables() {
  const std::vector<std::string> unknown = describe_unknown_variables(environ);
  if (unknown.empty()) return {.subject = "variables", .found = "no LOCKSTEP_ variable is unknown"};
  return {Verdict::warning, "variables", fmt::format("{}", fmt::join(unknown, "; ")), "unset or correct them"};
}

Finding launchers(const MachineFacts& facts) {
  std::vector<std::string> found;
  for (const char* name : {"srun", "sbatch", "mpirun", "mpiexec.hydra", "flux", "kubectl", "torchrun", "ssh"}) {
    if (const std::string path = facts.program(name); !path.empty()) found.push_back(path);
  }
  return {.subject = "launchers",
          .found = found.empty() ? "none but this one" : fmt::format("{}", fmt::join(found, ", "))};
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

Finding libtorch_of(const std::string& program, Deadline deadline) {
  const std::string subject = fmt::format("libtorch of {}", program);
  if (::access(program.c_str(), X_OK) != 0) {
    return {Verdict::error, subject, "the program cannot be executed", "give the path of a program of yours"};
  }
  const auto text = run_and_read({"/usr/bin/ldd", program}, deadline);
  if (!text) return {Verdict::warning, subject, "ldd cannot tell: not a program for this machine?", ""};
  const std::string path = linked(*text, "libtorch_cpu.so");
  if (path.empty()) return {.subject = subject, .found = "it does not link libtorch"};
  if (path == "not found") {
    return {Verdict::error, subject, "libtorch_cpu.so is not found",
            "set LD_LIBRARY_PATH to libtorch's lib folder, or link with an rpath (CMake: CMAKE_BUILD_RPATH)"};
  }
  const std::string cuda = linked(*text, "libtorch_cuda.so");
  return {.subject = subject, .found = path + (cuda.empty() ? "" : ", with CUDA")};
}

// The version as the package's files have it: importing it takes seconds.
constexpr const char* kFindTorch =
    "import importlib.metadata as m, importlib.util as u; s = u.find_spec('torch'); "
    "print(m.version('torch'), s.origin if s else '')";

Finding torch_of_python(const MachineFacts& facts, Deadline deadline) {
  const std::string python = facts.program("python3");
  if (python.empty()) return {.subject = "torch of Python", .found = "there is no python3"};
  const auto text = run_and_read({python, "-c", kFindTorch}, deadline);
  if (!text || text->empty()) return {.subject = "torch of Python", .found = fmt::format("{} has none", python)};
  return {.subject = "torch of Python", .found = text->substr(0, text->find('\n'))};
}

}  // namespace

Findings check_software(const MachineFacts& facts, const std::string& program, Deadline deadline) {
  const EnvironmentReader reader(facts.environment);
  Findings findings{token(reader), variables(), started_by(reader), launchers(facts), torch_of_python(facts, deadline)};
  if (!program.empty()) findings.push_back(libtorch_of(program, deadline));
  return findings;
}

}  // namespace lockstep::internal
