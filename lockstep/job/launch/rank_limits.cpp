#include "lockstep/job/launch/rank_limits.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <system_error>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kUnits = "KMGT";
constexpr double kMostBytes = 1e18;

// 0: there is no such unit.
double factor_of(std::string_view unit) {
  if (unit.empty() || unit == "B") return 1;
  const std::size_t power = kUnits.find(unit.front());
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = unit.substr(1);
  if (rest == "B") return std::pow(1000.0, static_cast<double>(power + 1));
  return rest.empty() || rest == "iB" ? std::pow(1024.0, static_cast<double>(power + 1)) : 0;
}

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<const char*, 3> kNames{"KiB", "MiB", "GiB"};
  auto value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.4g} {}", value, kNames[unit]);
}

std::string describe(const RankLimits& limits) {
  std::string text = limits.memory_bytes > 0 ? bytes_text(limits.memory_bytes) + " of memory" : "";
  if (limits.cpus > 0) {
    text += fmt::format("{}{:g} CPU{}", text.empty() ? "" : ", ", limits.cpus, limits.cpus == 1 ? "" : "s");
  }
  return text;
}

std::optional<std::int64_t> parse_size(std::string_view text) {
  double value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  const double bytes = value * factor_of(std::string_view(end, static_cast<std::size_t>(last - end)));
  if (!(bytes >= 1 && bytes <= kMostBytes)) return std::nullopt;
  return std::llround(bytes);
}

std::optional<std::uint64_t> counter_in(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (!line.starts_with(name) || line.substr(name.size(), 1) != " ") continue;
    std::uint64_t count = 0;
    const char* const begin = line.data() + name.size() + 1;
    if (std::from_chars(begin, line.data() + line.size(), count).ec != std::errc()) return std::nullopt;
    return count;
  }
  return std::nullopt;
}

}  // namespace lockstep::internal
