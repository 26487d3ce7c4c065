#include "tools/seconds_range.h"

#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::tools {
namespace {

std::optional<double> seconds_within(const std::string& text, double least, double most) {
  double value = 0;
  const bool good = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
  return good ? std::optional(value) : std::nullopt;
}

}  // namespace

CLI::Validator seconds_range(double least, double most) {
  return {[least, most](std::string& text) {
            if (seconds_within(text, least, most)) return std::string();
            return fmt::format("'{}' is not a number of seconds, {} to {}", text, least, most);
          },
          "SECONDS"};
}

std::chrono::milliseconds parse_seconds(const std::string& name, const std::string& text, double least, double most) {
  if (const auto value = seconds_within(text, least, most)) {
    return std::chrono::round<std::chrono::milliseconds>(std::chrono::duration<double>(*value));
  }
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{} is '{}'; it can be {} to {} seconds", name, text, least, most));
}

}  // namespace lockstep::tools
