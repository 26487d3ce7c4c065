#include "lockstep/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::atomic<int> g_rank{-1};

using Level = spdlog::level::level_enum;

Level wanted_level() {
  static constexpr std::array<std::string_view, 6> kNames{"debug", "info", "warning", "warn", "error", "off"};
  static constexpr std::array<Level, 6> kLevels{Level::debug, Level::info, Level::warn,
                                                Level::warn,  Level::err,  Level::off};
  const auto choice = EnvironmentReader().choice("LOCKSTEP_LOG", kNames);
  return choice ? kLevels[*choice] : Level::info;
}

Level wanted_level_or_info() noexcept {
  try {
    return wanted_level();
  } catch (const Error&) {  // check_log_level() says so
    return Level::info;
  }
}

spdlog::logger& logger() {
  // Leaked on purpose: threads may still log while static destructors run.
  static spdlog::logger& instance = *[] {
    auto* made = new spdlog::logger("lockstep", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("[lockstep] %v");
    made->set_level(wanted_level_or_info());
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return instance;
}

}  // namespace

void log(LogLevel level, std::string_view message) {
  static constexpr Level kLevels[] = {Level::debug, Level::info, Level::warn, Level::err};
  static constexpr const char* kNames[] = {"debug: ", "", "warning: ", "error: "};
  const auto index = static_cast<std::size_t>(level);
  const int rank = g_rank.load(std::memory_order_relaxed);
  try {
    const std::string prefix = rank >= 0 ? "rank " + std::to_string(rank) + ": " : "";
    logger().log(kLevels[index], "{}{}{}", prefix, kNames[index], message);
  } catch (...) {  // a full disk behind standard error must not end a training run
  }
}

void check_log_level() { wanted_level(); }

void set_log_rank(int rank) { g_rank.store(rank, std::memory_order_relaxed); }

}  // namespace lockstep
