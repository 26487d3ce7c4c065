#include "lockstep/base/last_word.h"

#include "lockstep/base/format.h"

namespace lockstep {

Error last_word(std::string_view who, int rank, const Error& error) {
  if (error.kind() == ErrorKind::peer_lost) return error;
  return Error(error.kind() == ErrorKind::invalid_argument ? error.kind() : ErrorKind::aborted,
               fmt::format("{} has given up: {}", who, error.what()), {.rank = error.detail().rank, .peer = rank});
}

}  // namespace lockstep
