#include "lockstep/base/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <string>

#include "lockstep/base/format.h"
#include "lockstep/base/log_queue.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 5> kLevels{"debug", "info", "warning", "error", "off"};

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

LogLevel level_of_environment() {
  const char* name = std::getenv("LOCKSTEP_LOG");
  if (name == nullptr || *name == '\0') return LogLevel::info;
  if (const auto level = parse_log_level(name)) return *level;
  write_line("warning: ", fmt::format("LOCKSTEP_LOG is '{}', which is no level: use {}; info is taken", name,
                                      fmt::join(kLevels, ", ")));
  return LogLevel::info;
}

}  // namespace

std::optional<LogLevel> parse_log_level(std::string_view name) {
  const auto found = std::ranges::find(kLevels, name);
  if (found == kLevels.end()) return std::nullopt;
  return static_cast<LogLevel>(found - kLevels.begin());
}

void log(LogLevel level, std::string_view message) {
  static constexpr std::array kPrefixes{"debug: ", "", "warning: ", "error: ", ""};
  try {
    static const LogLevel least = level_of_environment();
    if (level >= least && level != LogLevel::off) write_line(kPrefixes[static_cast<std::size_t>(level)], message);
  } catch (...) {  // no memory for the line
  }
}

void set_log_rank(int rank) { g_rank.store(rank, std::memory_order_relaxed); }

}  // namespace lockstep
