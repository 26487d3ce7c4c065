#include "lockstep/base/observe/report_value.h"

#include <atomic>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/observe/process_recorder.h"

namespace lockstep {

using namespace internal;

void report_value(std::string_view name, double value) {
  if (!is_value_name(name)) {
    throw Error(ErrorKind::invalid_argument, "report_value(): '" +
                                                 std::string(name.substr(0, 2 * kMostValueNameBytes)) +
                                                 "' is not a valid name; use 1 to 31 letters, digits, and _ . / -");
  }
  if (!is_watched() || process_recorder().memory().header().live.set(name, value)) return;
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true)) {
    log_warning("report_value(): the limit is " + std::to_string(kMostValues) + " names; '" + std::string(name) +
                "' and other new names are ignored");
  }
}

}  // namespace lockstep
