#include "lockstep/comm/transport/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace lockstep::internal {

void futex_wait(const arena::Doorbell& bell, std::uint32_t heard, Duration most) {
  const auto ns = most.count();
  const timespec relative{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  ::syscall(SYS_futex, &bell.rings, FUTEX_WAIT, heard, &relative, nullptr, 0);
}

void wake(arena::Doorbell& bell) {
  if (bell.sleeping.load(std::memory_order_relaxed) == 0) return;
  bell.rings.fetch_add(1, std::memory_order_release);
  ::syscall(SYS_futex, &bell.rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void ring(arena::Doorbell& bell) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake(bell);
}

}  // namespace lockstep::internal
