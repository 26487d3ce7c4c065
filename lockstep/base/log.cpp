#include "lockstep/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>

namespace lockstep {
namespace {

std::atomic<int> g_rank{-1};

spdlog::logger& logger() {
  // Leaked on purpose: threads may still log while static destructors run.
  static spdlog::logger& instance = *[] {
    auto* made = new spdlog::logger("lockstep", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("[lockstep] %v");
    const char* level = std::getenv("LOCKSTEP_LOG");
    made->set_level(level == nullptr ? spdlog::level::info : spdlog::level::from_str(level));
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return instance;
}

}  // namespace

void log(LogLevel level, std::string_view message) {
  static constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                          spdlog::level::warn, spdlog::level::err};
  static constexpr const char* kNames[] = {"debug: ", "", "warning: ", "error: "};
  const auto index = static_cast<std::size_t>(level);
  const int rank = g_rank.load(std::memory_order_relaxed);
  try {
    const std::string prefix = rank >= 0 ? "rank " + std::to_string(rank) + ": " : "";
    logger().log(kLevels[index], "{}{}{}", prefix, kNames[index], message);
  } catch (...) {  // a full disk behind standard error must not end a training run
  }
}

void set_log_rank(int rank) { g_rank.store(rank, std::memory_order_relaxed); }

}  // namespace lockstep
