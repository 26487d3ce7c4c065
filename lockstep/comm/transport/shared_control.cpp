#include "lockstep/comm/transport/shared_control.h"

#include "lockstep/comm/transport/doorbell.h"

namespace lockstep::internal {

static_assert(sizeof(arena::AbortRecord) % arena::kCacheLine == 0);

SharedControl::SharedControl(std::byte* region, int ranks)
    : record_(reinterpret_cast<arena::AbortRecord*>(region)),
      bells_(reinterpret_cast<arena::RankBells*>(region + sizeof(arena::AbortRecord))),
      ranks_(ranks) {}

std::size_t SharedControl::bytes(int ranks) {
  return sizeof(arena::AbortRecord) + static_cast<std::size_t>(ranks) * sizeof(arena::RankBells);
}

void SharedControl::abort(const Error& error) const noexcept {
  if (!record_abort(*record_, error)) return;
  for (int rank = 0; rank < ranks_; ++rank) {
    ring(bells_[rank].collectives);
    ring(bells_[rank].messages);
  }
}

}  // namespace lockstep::internal
