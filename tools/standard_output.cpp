#include "tools/standard_output.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace lockstep::tools {
namespace {

int g_error = 0;  // of the first that failed

}  // namespace

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

bool print(const std::string& text) {
  errno = 0;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!is_written && g_error == 0) g_error = errno;
  return is_written;
}

int end_standard_output(int code, int failed) {
  if (g_error == 0) return code;
  std::fprintf(stderr, "lockstep: writing to standard output failed: %s\n", std::strerror(g_error));
  return failed;
}

}  // namespace lockstep::tools
