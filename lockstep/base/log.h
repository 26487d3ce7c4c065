// One line a call to standard error, written whole: "[lockstep] rank 1: warning: text". Thread-safe; never throws, and
// never waits for whoever reads it (see log_queue.h). Level from LOCKSTEP_LOG (debug, info, warning, error, off); by
// default info, also if it is empty. A level that does not exist is a warning, and means info.
#pragma once

#include <optional>
#include <string_view>

namespace lockstep {

enum class LogLevel { debug, info, warning, error, off };
// Nothing if there is no level of that name.
std::optional<LogLevel> parse_log_level(std::string_view name);

void log(LogLevel level, std::string_view message);
// Prefixes later lines of this process with "rank N: ". -1 removes it.
void set_log_rank(int rank);

inline void log_debug(std::string_view message) { log(LogLevel::debug, message); }
inline void log_info(std::string_view message) { log(LogLevel::info, message); }
inline void log_warning(std::string_view message) { log(LogLevel::warning, message); }
inline void log_error(std::string_view message) { log(LogLevel::error, message); }

}  // namespace lockstep
