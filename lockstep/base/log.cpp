#include "lockstep/base/log.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log_line.h"
#include "lockstep/base/log_queue.h"

namespace lockstep::internal {
namespace {

std::atomic<int> g_rank{-1};

void write_line(LogLevel level, std::string_view message) {
  LogQueue::of_standard_error().write(library_line(level, g_rank.load(std::memory_order_relaxed), message));
}

LogLevel wanted_level() {
  static constexpr std::array kLevels{LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error,
                                      LogLevel::off};
  const std::string_view name = EnvironmentReader().choice("LOCKSTEP_LOG").value_or("info");
  return name == "warn" ? LogLevel::warning : *std::ranges::find(kLevels, name, name_of);
}

LogLevel level_of_environment() {
  try {
    return wanted_level();
  } catch (const Error& error) {
    write_line(LogLevel::warning, std::string(error.what()) + "; using info");
    return LogLevel::info;
  }
}

}  // namespace

void log(LogLevel level, std::string_view message) {
  try {
    static const LogLevel least = level_of_environment();
    if (level >= least && level != LogLevel::off) write_line(level, message);
  } catch (...) {  // no memory for the line
  }
}

void check_log_level() {
  wanted_level();
  EnvironmentReader().choice("LOCKSTEP_LOG_FORMAT");
}

void set_log_rank(int rank) { g_rank.store(rank, std::memory_order_relaxed); }

}  // namespace lockstep::internal
