#include "tools/standard_output.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace lockstep::tools {

void prepare_standard_output() {
  for (int fd = 0; fd < 3; ++fd) {
    // Only for reading, so that writing still fails.
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);
  }
  // A handler, since what is ignored stays so in programs that this one starts.
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGPIPE, &action, nullptr);
}

int end_standard_output(int code, int failed) {
  const bool has_failed = std::ferror(stdout) != 0;
  errno = 0;
  if (std::fflush(stdout) == 0 && !has_failed) return code;
  std::fprintf(stderr, "lockstep: writing to standard output failed%s%s\n", errno == 0 ? "" : ": ",
               errno == 0 ? "" : std::strerror(errno));
  return failed;
}

}  // namespace lockstep::tools
