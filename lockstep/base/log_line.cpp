#include "lockstep/base/log_line.h"

#include <array>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/machine.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kBegin = R"({"time":")";

LogFormat format_of_environment() {
  try {
    const auto name = EnvironmentReader().choice("LOCKSTEP_LOG_FORMAT");
    return name == "json" ? LogFormat::json : LogFormat::text;
  } catch (const Error&) {
    return LogFormat::text;
  }
}

// The attempt that a launcher has started this process for.
int attempt_of_environment() {
  try {
    return EnvironmentReader().number("LOCKSTEP_GENERATION").value_or(-1);
  } catch (const Error&) {  // joining the job reports it
    return -1;
  }
}

}  // namespace

LogFormat log_format() {
  static const LogFormat format = format_of_environment();
  return format;
}

std::string log_time() {
  using std::chrono::milliseconds;
  const auto now = std::chrono::floor<milliseconds>(std::chrono::system_clock::now());
  const std::time_t whole = std::chrono::system_clock::to_time_t(now);
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, now.time_since_epoch().count() % 1000);
}

std::string log_host() {
  const auto label = EnvironmentReader().text("LOCKSTEP_NODE");
  return label ? *label : host_name();
}

std::string_view name_of(LogLevel level) {
  static constexpr std::array<std::string_view, 5> kNames{"debug", "info", "warning", "error", "off"};
  return kNames[static_cast<std::size_t>(level)];
}

std::string json_of(const LogLine& line) {
  nlohmann::ordered_json object;
  object["time"] = line.time;
  if (!line.level.empty()) object["level"] = line.level;
  if (!line.host.empty()) object["host"] = line.host;
  if (line.rank >= 0) object["rank"] = line.rank;
  if (line.attempt >= 0) object["attempt"] = line.attempt;
  if (!line.stream.empty()) object["stream"] = line.stream;
  object["message"] = line.message;
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::optional<LogLine> read_library_line(std::string_view line) {
  if (!line.starts_with(kBegin)) return std::nullopt;
  const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  LogLine read;
  for (const auto& [key, value] : object.items()) {
    std::string* const text = key == "time"      ? &read.time
                              : key == "level"   ? &read.level
                              : key == "host"    ? &read.host
                              : key == "message" ? &read.message
                                                 : nullptr;
    if (text != nullptr && value.is_string()) {
      *text = value.get<std::string>();
    } else if ((key == "rank" || key == "attempt") && value.is_number_unsigned()) {
      continue;  // its launcher knows both
    } else {
      return std::nullopt;
    }
  }
  const bool is_whole = !read.time.empty() && !read.level.empty() && object.contains("message");
  return is_whole ? std::optional(std::move(read)) : std::nullopt;
}

std::string library_text(std::string_view level, int rank, std::string_view message) {
  const std::string from = rank >= 0 ? fmt::format("rank {}: ", rank) : "";
  return fmt::format("[lockstep] {}{}{}{}", from, level == "info" ? "" : level, level == "info" ? "" : ": ", message);
}

std::string library_line(LogLevel level, int rank, std::string_view message) {
  if (log_format() == LogFormat::text) return library_text(name_of(level), rank, message) + "\n";
  static const int attempt = attempt_of_environment();
  return json_of({.time = log_time(),
                  .level = std::string(name_of(level)),
                  .host = log_host(),
                  .rank = rank,
                  .attempt = attempt,
                  .message = std::string(message)});
}

}  // namespace lockstep::internal
