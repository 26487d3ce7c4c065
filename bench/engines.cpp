#include "bench/engines.h"

#include <algorithm>
#include <thread>

#include "bench/programs.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace bench {
namespace {

struct Engine {
  std::string kind;
  EngineCommand start;
  std::vector<std::string> needs;  // programs
};

Engine native(const std::string& kind, const std::string& name, int ranks) {
  const std::string program = built_program("bench_collective_worker");
  return {kind, {name, ranks, {program, name, std::to_string(ranks)}}, {program}};
}

Engine gloo(int ranks) {
  return {"gloo", {"gloo", ranks, {python(), script("gloo_worker.py"), std::to_string(ranks)}}, {python()}};
}

Engine openmpi(int ranks) {
  const std::string program = built_program("bench_mpi_openmpi");
  std::vector<std::string> command{"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"};
  // It counts cores and would yield where each rank has a hardware thread of its own, which costs it time.
  if (ranks <= static_cast<int>(std::thread::hardware_concurrency())) {
    command.insert(command.end(), {"--mca", "mpi_yield_when_idle", "0"});
  }
  command.insert(command.end(), {"-n", std::to_string(ranks), program});
  return {"mpi", {"openmpi", ranks, command}, {"mpirun.openmpi", program}};
}

Engine mpich(int ranks) {
  const std::string program = built_program("bench_mpi_mpich");
  return {"mpi",
          {"mpich", ranks, {"mpiexec.hydra", "-bind-to", "none", "-n", std::to_string(ranks), program}},
          {"mpiexec.hydra", program}};
}

std::vector<Engine> engines_here(int ranks) {
  return {native("native", "native", ranks),
          native("native", "native-ordinary", ranks),
          gloo(ranks),
          openmpi(ranks),
          mpich(ranks),
          native("memcpy", "memcpy", ranks),
          native("memcpy", "memcpy-alone", 1)};
}

std::vector<Engine> engines_on(const std::string& hosts, int ranks) {
  const std::string count = std::to_string(ranks);
  const std::string own = built_program("bench_collective_worker"), mpi = built_program("bench_mpi_openmpi");
  const auto start = [&](std::vector<std::string> arguments) {
    std::vector<std::string> command{python(), script("on_hosts.py"), arguments.front(), hosts, count};
    command.insert(command.end(), arguments.begin() + 1, arguments.end());
    return command;
  };
  return {{"native", {"native-ordinary", ranks, start({"ranks", own, "native-ordinary", count})}, {own, "ip"}},
          {"gloo", {"gloo", ranks, {python(), script("gloo_worker.py"), count, hosts}}, {python()}},
          {"mpi", {"openmpi", ranks, start({"openmpi", mpi})}, {"mpirun.openmpi", mpi}}};
}

bool is_installed(const Engine& engine) { return std::all_of(engine.needs.begin(), engine.needs.end(), exists); }

}  // namespace

std::vector<EngineCommand> engine_commands(const std::vector<std::string>& wanted, int ranks,
                                           const std::string& hosts) {
  const std::vector<Engine> engines = hosts.empty() ? engines_here(ranks) : engines_on(hosts, ranks);
  for (const std::string& name : wanted) {
    const bool known = name == "all" || std::any_of(engines.begin(), engines.end(), [&](const Engine& engine) {
                         return engine.kind == name || engine.start.name == name;
                       });
    if (!known) {
      throw lockstep::Error(lockstep::ErrorKind::invalid_argument,
                            fmt::format("--engines: there is no '{}'; there are all, native, native-ordinary, gloo, "
                                        "mpi, openmpi and, on one host, mpich, memcpy and memcpy-alone",
                                        name));
    }
  }
  const auto names = [&](const std::string& name) {
    return std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  };
  std::vector<EngineCommand> chosen;
  for (const Engine& engine : engines) {
    if (!names("all") && !names(engine.kind) && !names(engine.start.name)) continue;
    if (is_installed(engine)) {
      chosen.push_back(engine.start);
    } else if (names(engine.start.name)) {
      throw lockstep::Error(lockstep::ErrorKind::invalid_argument,
                            fmt::format("--engines {}: not installed, it needs {}; script/bootstrap --bench installs "
                                        "what can be compared with, before the build",
                                        engine.start.name, fmt::join(engine.needs, " and ")));
    }
  }
  if (chosen.empty()) {
    throw lockstep::Error(lockstep::ErrorKind::invalid_argument,
                          fmt::format("--engines {}: none of these is installed", fmt::join(wanted, ",")));
  }
  return chosen;
}

}  // namespace bench
