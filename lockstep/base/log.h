// One line a call to standard error, written whole: "[lockstep] rank 1: warning: text". Thread-safe; never throws, and
// never waits for its reader (see log_queue.h). LOCKSTEP_LOG sets the level; a level that does not exist is a warning,
// and info is used. LOCKSTEP_LOG_FORMAT=json makes each line an object (log_line.h).
#pragma once

#include <string_view>

namespace lockstep::internal {

enum class LogLevel { debug, info, warning, error, off };

void log(LogLevel level, std::string_view message);
// Error{invalid_argument} if LOCKSTEP_LOG or LOCKSTEP_LOG_FORMAT has no valid value. Joining a job calls this.
void check_log_level();
// Prefixes later lines of this process with "rank N: ". -1 removes it.
void set_log_rank(int rank);

inline void log_debug(std::string_view message) { log(LogLevel::debug, message); }
inline void log_info(std::string_view message) { log(LogLevel::info, message); }
inline void log_warning(std::string_view message) { log(LogLevel::warning, message); }
inline void log_error(std::string_view message) { log(LogLevel::error, message); }

}  // namespace lockstep::internal
