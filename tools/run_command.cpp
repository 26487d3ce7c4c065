#include "tools/run_command.h"

#include <cstdio>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/launch/child_process.h"
#include "lockstep/launch/program_path.h"
#include "lockstep/rendezvous/launchers.h"
#include "tools/run_local.h"
#include "tools/run_over_ssh.h"

namespace lockstep::tools {

using namespace internal;

namespace {

void print_error(const Error& error) { std::fprintf(stderr, "lockstep: %s\n", error.what()); }

// Another launcher may have started this one several times, where one job on all hosts was meant.
void warn_of_copies() {
  try {
    for (const Launch& launch : find_launches(EnvironmentReader())) {
      if (launch.rank != 0 || launch.size.value_or(1) == 1) continue;
      log_warning(std::string(launch.launcher) + " has started " + std::to_string(*launch.size) +
                  " copies of this launcher, and each starts a job of its own. For one job let it start the program "
                  "itself");
    }
  } catch (const Error&) {  // a job on this machine does not depend on them
  }
}

std::string search_path() { return EnvironmentReader().text("PATH").value_or("/usr/local/bin:/usr/bin:/bin"); }

}  // namespace

int run_command(const RunOptions& options) {
  occupy_standard_descriptors();
  if (options.hosts.empty()) warn_of_copies();
  try {
    if (!options.hosts.empty()) return run_over_ssh(options);
    return run_local(options, find_program(options.program.front(), search_path()));
  } catch (const ExecFailed& error) {
    print_error(error);
    return error.shell_code();
  } catch (const Error& error) {
    print_error(error);
    return error.kind() == ErrorKind::invalid_argument ? kUsageExitCode : kStoreExitCode;
  }
}

}  // namespace lockstep::tools
