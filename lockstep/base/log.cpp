#include "lockstep/base/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log_queue.h"

namespace lockstep::internal {
namespace {

std::atomic<int> g_rank{-1};

void write_line(std::string_view prefix, std::string_view message) {
  // Leaked on purpose: threads may still log while static destructors run.
  static LogQueue& queue = *[] {
    auto* made = new LogQueue(STDERR_FILENO);
    // A reader that pauses while the program ends gets a moment to take the rest.
    static LogQueue* at_exit = made;
    std::atexit([] { at_exit->drain(Deadline::after(std::chrono::seconds(1))); });
    return made;
  }();
  const int rank = g_rank.load(std::memory_order_relaxed);
  const std::string from = rank >= 0 ? fmt::format("rank {}: ", rank) : "";
  queue.write(fmt::format("[lockstep] {}{}{}\n", from, prefix, message));
}

LogLevel wanted_level() {
  static constexpr std::array<std::string_view, 5> kNames{"debug", "info", "warning", "error", "off"};
  const std::string_view name = EnvironmentReader().choice("LOCKSTEP_LOG").value_or("info");
  if (name == "warn") return LogLevel::warning;
  return static_cast<LogLevel>(std::ranges::find(kNames, name) - kNames.begin());
}

LogLevel level_of_environment() {
  try {
    return wanted_level();
  } catch (const Error& error) {
    write_line("warning: ", std::string(error.what()) + "; info is taken");
    return LogLevel::info;
  }
}

}  // namespace

void log(LogLevel level, std::string_view message) {
  static constexpr std::array kPrefixes{"debug: ", "", "warning: ", "error: ", ""};
  try {
    static const LogLevel least = level_of_environment();
    if (level >= least && level != LogLevel::off) write_line(kPrefixes[static_cast<std::size_t>(level)], message);
  } catch (...) {  // no memory for the line
  }
}

void check_log_level() { wanted_level(); }

void set_log_rank(int rank) { g_rank.store(rank, std::memory_order_relaxed); }

}  // namespace lockstep::internal
