#include "lockstep/health/peer_failure.h"

#include "lockstep/base/format.h"

namespace lockstep {

Error error_for_peers(std::string_view who, int rank, const Error& error) {
  if (error.kind() == ErrorKind::peer_lost) return error;
  return Error(error.kind() == ErrorKind::invalid_argument ? error.kind() : ErrorKind::aborted,
               fmt::format("{} has given up: {}", who, error.what()), {.rank = error.detail().rank, .peer = rank});
}

}  // namespace lockstep
