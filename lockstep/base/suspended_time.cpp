#include "lockstep/base/suspended_time.h"

#include <time.h>

#include <atomic>
#include <memory>
#include <system_error>
#include <thread>

#include "lockstep/base/fork_guard.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/base/suspend_detector.h"

namespace lockstep::internal {
namespace {

struct Watch {
  ForkGuard fork_guard;
  SuspendDetector detector{suspended_time()};
};

// Never destroyed: its thread goes on while static destructors run.
std::atomic<Watch*> current{nullptr};

void beat_forever(SuspendDetector& detector) {
  constexpr timespec kPause{0, static_cast<long>(SuspendDetector::kPeriod.count())};
  for (;;) {
    detector.beat(steady_clock().now());
    ::nanosleep(&kPause, nullptr);
  }
}

}  // namespace

void detect_suspension() {
  Watch* known = current.load(std::memory_order_acquire);
  if (known != nullptr && known->fork_guard.is_here()) return;
  auto made = std::make_unique<Watch>();
  if (!current.compare_exchange_strong(known, made.get())) return;  // another thread was faster
  SuspendDetector& detector = made.release()->detector;
  const SignalBlock block;
  try {
    std::thread([&detector] { beat_forever(detector); }).detach();
  } catch (const std::system_error&) {  // no thread: suspensions count as time
  }
}

Duration suspended_time() {
  const Watch* watch = current.load(std::memory_order_acquire);
  return watch == nullptr ? Duration::zero() : watch->detector.suspended();
}

Duration suspended_time_now() {
  Watch* watch = current.load(std::memory_order_acquire);
  if (watch != nullptr && watch->fork_guard.is_here()) watch->detector.check(steady_clock().now());
  return suspended_time();
}

}  // namespace lockstep::internal
