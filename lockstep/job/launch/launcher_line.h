// A line of the launcher's own, with its newline, in the format that is wanted (log_line.h): "lockstep: warning: text",
// or an object. Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/log.h"

namespace lockstep::internal {

// Of the levels, text shows warning alone: what an error says begins with what has failed. attempt: -1 for none.
std::string launcher_line(std::string_view message, LogLevel level = LogLevel::info, int attempt = -1);
// Where no RankOutput has standard error. Never waits for its reader (log_queue.h).
void say_on_standard_error(std::string_view message, LogLevel level = LogLevel::info);

}  // namespace lockstep::internal
