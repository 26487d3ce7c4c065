#include "lockstep/job/launch/launcher_line.h"

#include "lockstep/base/format.h"
#include "lockstep/base/log_line.h"
#include "lockstep/base/log_queue.h"

namespace lockstep::internal {

std::string launcher_line(std::string_view message, LogLevel level, int attempt) {
  if (log_format() == LogFormat::text) {
    return fmt::format("lockstep: {}{}\n", level == LogLevel::warning ? "warning: " : "", message);
  }
  return json_of({.time = log_time(),
                  .level = std::string(name_of(level)),
                  .host = log_host(),
                  .attempt = attempt,
                  .message = std::string(message)});
}

void say_on_standard_error(std::string_view message, LogLevel level) {
  LogQueue::of_standard_error().write(launcher_line(message, level));
}

}  // namespace lockstep::internal
