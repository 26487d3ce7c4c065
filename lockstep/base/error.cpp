#include "lockstep/base/error.h"

#include <sys/resource.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace lockstep {

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument: return "invalid_argument";
    case ErrorKind::timeout: return "timeout";
    case ErrorKind::peer_lost: return "peer_lost";
    case ErrorKind::desync: return "desync";
    case ErrorKind::aborted: return "aborted";
    case ErrorKind::corrupt_data: return "corrupt_data";
    case ErrorKind::unauthorized: return "unauthorized";
    case ErrorKind::internal: return "internal";
  }
  return "unknown";
}

Error::Error(ErrorKind kind, const std::string& message, ErrorDetail detail)
    : std::runtime_error(message), kind_(kind), detail_(std::move(detail)) {}

Error system_error(const std::string& what, int saved_errno) {
  std::string text = what + ": " + std::generic_category().message(saved_errno);
  rlimit limit{};
  if (saved_errno == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    text += "; this process is limited to " + std::to_string(limit.rlim_cur) +
            " descriptors: raise the limit (ulimit -n) before it starts";
  }
  if (saved_errno == EFBIG && ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    text += "; files of this process are limited to " + std::to_string(limit.rlim_cur) +
            " bytes: raise the limit (ulimit -f unlimited) before it starts";
  }
  return Error(ErrorKind::internal, text);
}

}  // namespace lockstep
