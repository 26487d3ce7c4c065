#include "lockstep/train/ddp/lockstep_mode/mode.h"

#include <bit>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep {

Error lockstep_mode_error(const std::string& why) {
  return Error(ErrorKind::invalid_argument, "lockstep mode: " + why);
}

void check_mode(const LockstepMode& mode, int ranks) {
  if (mode.shards < 1 || !std::has_single_bit(static_cast<unsigned>(mode.shards))) {
    throw lockstep_mode_error(fmt::format("the number of shards is {}; it has to be a power of two", mode.shards));
  }
  if (!std::has_single_bit(static_cast<unsigned>(ranks))) {
    throw lockstep_mode_error(fmt::format("the number of ranks is {}; it has to be a power of two", ranks));
  }
  if (mode.shards % ranks != 0) {
    throw lockstep_mode_error(
        fmt::format("{} shards are too few for {} ranks; use at least as many shards as ranks", mode.shards, ranks));
  }
  if (mode.threads < 1) {
    throw lockstep_mode_error(fmt::format("threads is {}; give 1 or more", mode.threads));
  }
}

}  // namespace lockstep
