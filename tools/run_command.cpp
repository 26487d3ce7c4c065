#include "tools/run_command.h"

#include <cstdio>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/launch/child_process.h"
#include "lockstep/launch/program_path.h"
#include "tools/cluster_place.h"
#include "tools/run_hosts.h"
#include "tools/run_local.h"
#include "tools/run_over_ssh.h"

namespace lockstep::tools {

using namespace internal;

namespace {

void print_error(const Error& error) { std::fprintf(stderr, "lockstep: %s\n", error.what()); }

std::string search_path() { return EnvironmentReader().text("PATH").value_or("/usr/local/bin:/usr/bin:/bin"); }

}  // namespace

int run_command(const RunOptions& given) {
  occupy_standard_descriptors();
  try {
    if (!given.hosts.empty()) return run_over_ssh(given);
    const RunOptions options = in_cluster(given);
    const std::string path = find_program(options.program.front(), search_path());
    return options.rdzv_endpoint.empty() ? run_local(options, path) : run_hosts(options, path);
  } catch (const ExecFailed& error) {
    print_error(error);
    return error.shell_code();
  } catch (const Error& error) {
    print_error(error);
    return error.kind() == ErrorKind::invalid_argument ? kUsageExitCode : kStoreExitCode;
  }
}

}  // namespace lockstep::tools
