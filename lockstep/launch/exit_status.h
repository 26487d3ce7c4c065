// ExitStatus says how a process ended. A value type.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

struct ExitStatus {
  int code = 0;    // meaningful if signal is 0
  int signal = 0;  // 0 if the process exited by itself
  bool core_dumped = false;
  std::int64_t peak_bytes = 0;  // of memory that it had at one time; 0: not known

  bool ok() const { return code == 0 && signal == 0; }
  // What a shell reports: the code, or 128 + signal.
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
};

// "SIGSEGV"; "signal 40" for one without a name.
std::string signal_name(int signal);
// "exited with code 3", "was killed by SIGSEGV (core dumped)"
std::string describe(const ExitStatus& status);

}  // namespace lockstep
