// A line of the log as text, for people, or as JSON, for programs that collect logs: one object a line. Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/log.h"

namespace lockstep::internal {

enum class LogFormat { text, json };
// That LOCKSTEP_LOG_FORMAT names, from the first call on. A value that does not exist is text: check_log_level() says
// so.
LogFormat log_format();

// What is not known is missing in the object.
struct LogLine {
  std::string time = {};   // as of log_time()
  std::string level = {};  // "debug", "info", "warning", "error"; of a rank's output: empty
  std::string host = {};   // as of log_host()
  int rank = -1;
  int attempt = -1;
  std::string stream = {};  // of a rank's output: "stdout", "stderr"
  std::string message = {};
};

std::string log_time();  // now: "2026-01-31T12:00:00.123Z"
std::string log_host();  // this one, as its job calls it: LOCKSTEP_NODE, else its name
std::string_view name_of(LogLevel level);

// With a newline. What is not UTF-8 in the message is replaced.
std::string json_of(const LogLine& line);
// Lockstep's own line as a rank has written it as JSON; nothing if it is any other.
std::optional<LogLine> read_library_line(std::string_view line);

// Lockstep's own line in the format that is wanted, with a newline.
std::string library_line(LogLevel level, int rank, std::string_view message);
// The same as text: "[lockstep] rank 1: warning: text".
std::string library_text(std::string_view level, int rank, std::string_view message);

}  // namespace lockstep::internal
