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

using Words = std::vector<std::string>;

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words what_to_do(const EngineSettings& settings) { return {settings.operation, settings.dtype}; }

Engine native(const std::string& kind, const std::string& name, const EngineSettings& settings, int ranks) {
  const std::string program = built_program("bench_collective_worker");
  const Words command{program, name, std::to_string(ranks)};
  return {kind, {name, ranks, joined(command, what_to_do(settings))}, {program}};
}

// Over the loopback device, where all hosts are one.
Engine over_tcp(const std::string& name, const std::string& checksums, const EngineSettings& settings) {
  Engine engine = native("tcp", "native-ordinary", settings, settings.ranks);
  engine.start.name = name;
  engine.start.command =
      joined({"env", "LOCKSTEP_TRANSPORT=tcp", "LOCKSTEP_CHECKSUMS=" + checksums}, engine.start.command);
  return engine;
}

Words torch_worker(const EngineSettings& settings, const std::string& backend) {
  const Words command{python(), script("torch_worker.py"), std::to_string(settings.ranks), backend};
  return joined(command, what_to_do(settings));
}

Engine gloo(const EngineSettings& settings) {
  return {"gloo", {"gloo", settings.ranks, torch_worker(settings, "gloo")}, {python()}};
}

Engine own_from_python(const EngineSettings& settings) {
  return {"python",
          {"python", settings.ranks, with_own_backend(torch_worker(settings, "lockstep"))},
          {python(), own_backend()}};
}

Engine openmpi(const EngineSettings& settings) {
  const std::string program = built_program("bench_mpi_openmpi");
  Words command{"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"};
  // It counts cores and would yield where each rank has a hardware thread of its own, which costs it time.
  if (settings.ranks <= static_cast<int>(std::thread::hardware_concurrency())) {
    command = joined(command, {"--mca", "mpi_yield_when_idle", "0"});
  }
  command = joined(command, {"-n", std::to_string(settings.ranks), program, settings.operation});
  return {"mpi", {"openmpi", settings.ranks, command}, {"mpirun.openmpi", program}};
}

Engine mpich(const EngineSettings& settings) {
  const std::string program = built_program("bench_mpi_mpich");
  const Words command{"mpiexec.hydra", "-bind-to",        "none", "-n", std::to_string(settings.ranks),
                      program,         settings.operation};
  return {"mpi", {"mpich", settings.ranks, command}, {"mpiexec.hydra", program}};
}

std::vector<Engine> engines_here(const EngineSettings& settings) {
  std::vector<Engine> engines{native("native", "native", settings, settings.ranks),
                              native("native", "native-ordinary", settings, settings.ranks),
                              own_from_python(settings),
                              gloo(settings),
                              native("memcpy", "memcpy", settings, settings.ranks),
                              native("memcpy", "memcpy-alone", settings, 1),
                              over_tcp("tcp", "on", settings),
                              over_tcp("tcp-unchecked", "off", settings)};
  if (settings.dtype == "float32") engines.insert(engines.begin() + 4, {openmpi(settings), mpich(settings)});
  return engines;
}

std::vector<Engine> engines_on_hosts(const EngineSettings& settings) {
  const int ranks = settings.ranks;
  const std::string own = built_program("bench_collective_worker"), mpi = built_program("bench_mpi_openmpi");
  const auto start = [&](const std::string& how, const Words& program) {
    return joined({python(), script("on_hosts.py"), how, settings.hosts, std::to_string(ranks)}, program);
  };
  const Words native = joined({own, "native-ordinary", std::to_string(ranks)}, what_to_do(settings));
  std::vector<Engine> engines{
      {"native", {"native-ordinary", ranks, start("ranks", native)}, {own, "ip"}},
      {"gloo", {"gloo", ranks, joined(torch_worker(settings, "gloo"), {settings.hosts})}, {python()}}};
  if (settings.dtype == "float32") {
    engines.push_back(
        {"mpi", {"openmpi", ranks, start("openmpi", {mpi, settings.operation})}, {"mpirun.openmpi", mpi}});
  }
  return engines;
}

bool is_installed(const Engine& engine) { return std::all_of(engine.needs.begin(), engine.needs.end(), exists); }

}  // namespace

std::vector<EngineCommand> engine_commands(const std::vector<std::string>& wanted, const EngineSettings& settings) {
  const std::vector<Engine> engines = settings.hosts.empty() ? engines_here(settings) : engines_on_hosts(settings);
  for (const std::string& name : wanted) {
    const bool known = name == "all" || std::any_of(engines.begin(), engines.end(), [&](const Engine& engine) {
                         return engine.kind == name || engine.start.name == name;
                       });
    if (!known) {
      throw lockstep::Error(
          lockstep::ErrorKind::invalid_argument,
          fmt::format("--engines: there is no '{}'; there are all, native, native-ordinary, gloo, "
                      "mpi, openmpi and, on one host, python, mpich, memcpy, memcpy-alone, tcp and tcp-unchecked",
                      name));
    }
  }
  const auto names = [&](const std::string& name) {
    return std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  };
  std::vector<EngineCommand> chosen;
  for (const Engine& engine : engines) {
    const bool is_in_all = engine.kind != "tcp";
    if (!(names("all") && is_in_all) && !names(engine.kind) && !names(engine.start.name)) continue;
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
