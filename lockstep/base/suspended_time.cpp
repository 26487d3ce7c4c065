#include "lockstep/base/suspended_time.h"

#include <time.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <system_error>
#include <thread>

#include "lockstep/base/fork_guard.h"
#include "lockstep/base/suspend_detector.h"

namespace lockstep {
namespace {

struct Watch {
  ForkGuard fork_guard;
  SuspendDetector heart{suspended_time()};
};

// Never destroyed: its thread goes on while static destructors run.
std::atomic<Watch*> current{nullptr};

void beat_for_ever(SuspendDetector& heart) {
  constexpr timespec kPause{0, static_cast<long>(SuspendDetector::kPeriod.count())};
  for (;;) {
    heart.beat(steady_clock().now());
    ::nanosleep(&kPause, nullptr);
  }
}

}  // namespace

void detect_suspension() {
  Watch* known = current.load(std::memory_order_acquire);
  if (known != nullptr && known->fork_guard.is_here()) return;
  auto made = std::make_unique<Watch>();
  if (!current.compare_exchange_strong(known, made.get())) return;  // another thread was faster
  SuspendDetector& heart = made.release()->heart;
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  try {
    std::thread([&heart] { beat_for_ever(heart); }).detach();
  } catch (const std::system_error&) {  // without a beat no stop is noticed
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Duration suspended_time() {
  const Watch* watch = current.load(std::memory_order_acquire);
  return watch == nullptr ? Duration::zero() : watch->heart.stopped();
}

Duration suspended_time_now() {
  Watch* watch = current.load(std::memory_order_acquire);
  if (watch != nullptr && watch->fork_guard.is_here()) watch->heart.look(steady_clock().now());
  return suspended_time();
}

}  // namespace lockstep
