// Preloaded into a process: its wall clock jumps a day forth and back with every look. Waits and deadlines must not
// care.
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace {

constexpr long kDay = 86'400;

timespec jumping_now() {
  static std::atomic<unsigned> looks{0};
  timespec now{};
  ::syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  now.tv_sec += looks++ % 2 == 0 ? kDay : -kDay;
  return now;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* now) noexcept {
  if (clock != CLOCK_REALTIME) return static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
  *now = jumping_now();
  return 0;
}

__attribute__((visibility("default"))) int gettimeofday(timeval* now, void* /*zone*/) noexcept {
  const timespec jumped = jumping_now();
  *now = {jumped.tv_sec, jumped.tv_nsec / 1000};
  return 0;
}

__attribute__((visibility("default"))) time_t time(time_t* now) noexcept {
  const time_t jumped = jumping_now().tv_sec;
  if (now != nullptr) *now = jumped;
  return jumped;
}

}  // extern "C"
