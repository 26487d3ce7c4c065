#include "lockstep/transport/process_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "lockstep/base/unique_fd.h"

namespace lockstep {

char process_state(int pid) {
  if (pid <= 0) return 0;
  const UniqueFd fd(::open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return 0;
  char text[256];
  ssize_t bytes = 0;
  do {
    bytes = ::read(fd.get(), text, sizeof text);
  } while (bytes < 0 && errno == EINTR);
  if (bytes <= 0) return 0;
  // "pid (name) state ...": the name may hold anything, but no more than 15 bytes.
  const std::string_view view(text, static_cast<std::size_t>(bytes));
  const std::size_t end = view.rfind(") ");
  return end == std::string_view::npos || end + 2 >= view.size() ? '\0' : view[end + 2];
}

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
