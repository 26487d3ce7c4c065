#include "lockstep/base/error.h"

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
  return Error(ErrorKind::internal, what + ": " + std::generic_category().message(saved_errno));
}

}  // namespace lockstep
