#include "lockstep/base/clock.h"

namespace lockstep {
namespace {

class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace

const Clock& steady_clock() {
  // Leaked on purpose, as the others: threads may still wait while static destructors run.
  static const Clock& clock = *new SteadyClock;
  return clock;
}

}  // namespace lockstep
