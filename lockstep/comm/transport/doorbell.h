// A doorbell in shared memory: where one thread of one rank sleeps, and other ranks wake it. Never lost: either the
// sleeper sees what was written before the bell, or the writer sees that somebody sleeps.
#pragma once

#include <atomic>

#include "lockstep/base/clock.h"
#include "lockstep/comm/transport/arena_layout.h"

namespace lockstep::internal {

// Announces that this thread sleeps, and calls block() unless is_ready().
template <class IsReady, class Block>
void sleep_at(arena::Doorbell& bell, IsReady&& is_ready, Block&& block) {
  bell.sleeping.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with the one in ring() and before wake()
  if (!is_ready()) block();
  bell.sleeping.store(0, std::memory_order_relaxed);
}
// The same; sleeps until the bell rings, at most this long.
template <class IsReady>
void sleep_at(arena::Doorbell& bell, IsReady&& is_ready, Duration most);

// Wakes the sleeper, if there is one. REQUIRES: a full fence since the write that it may wait for.
void wake(arena::Doorbell& bell);
// The same, with the fence.
void ring(arena::Doorbell& bell);

// Sleeps while the bell has rung `heard` times.
void futex_wait(const arena::Doorbell& bell, std::uint32_t heard, Duration most);

template <class IsReady>
void sleep_at(arena::Doorbell& bell, IsReady&& is_ready, Duration most) {
  const std::uint32_t heard = bell.rings.load(std::memory_order_acquire);
  sleep_at(bell, is_ready, [&] { futex_wait(bell, heard, most); });
}

}  // namespace lockstep::internal
