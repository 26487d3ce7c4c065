#include "lockstep/health/process_state.h"

#include "lockstep/health/process_watch.h"

namespace lockstep {

char process_state(int pid) { return pid <= 0 ? '\0' : process_stat(pid).state; }

std::string_view describe_process_state(char state) {
  switch (state) {
    case 0: return "";
    case 'T': return "stopped (by SIGSTOP or the like)";
    case 't': return "stopped by a debugger";
    case 'D': return "alive, in uninterruptible sleep (disk, or a frozen container)";
    case 'X':
    case 'Z': return "ended";
    default: return "alive";
  }
}

bool is_stopped(char state) { return state == 'T' || state == 't'; }

}  // namespace lockstep
