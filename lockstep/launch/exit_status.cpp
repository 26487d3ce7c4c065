#include "lockstep/launch/exit_status.h"

#include <csignal>
#include <cstring>

#include "lockstep/base/format.h"

namespace lockstep {

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string describe(const ExitStatus& status) {
  if (status.signal == 0) return fmt::format("exited with code {}", status.code);
  return fmt::format("was killed by {}{}", signal_name(status.signal), status.core_dumped ? " (core dumped)" : "");
}

}  // namespace lockstep
