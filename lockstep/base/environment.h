// Environment variables. environment.cpp has the table of all variables that Lockstep reads, with their values and
// defaults; nothing else calls getenv(). One rule holds for all of them: an empty variable counts as not set, and a
// value that is not accepted is Error{invalid_argument}, which quotes it and lists what is. docs/VARIABLES.md explains
// them; tests/tidy compares it with the table. Thread-safe, as long as nobody changes the environment meanwhile.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::internal {

using Environment = std::function<const char*(const char* name)>;  // std::getenv's shape
const char* process_environment(const char* name);

// REQUIRES of all reads: the variable is in the table; otherwise Error{internal}.
class EnvironmentReader {
 public:
  explicit EnvironmentReader(Environment environment = process_environment) : environment_(std::move(environment)) {}

  std::optional<std::string> text(const char* name) const;
  bool has(const char* name) const { return text(name).has_value(); }
  bool has_any_of(std::initializer_list<const char*> names) const;
  // The first that is set.
  std::optional<std::string> first_of(std::initializer_list<const char*> names) const;
  // One of the table's values; upper and lower case are the same.
  std::optional<std::string_view> choice(const char* name) const;
  // Within the table's range, and that of the type.
  template <std::integral Number = int>
  std::optional<Number> number(const char* name) const {
    using Limits = std::numeric_limits<Number>;
    constexpr std::int64_t kMost = std::cmp_greater(Limits::max(), INT64_MAX) ? INT64_MAX : Limits::max();
    const auto value = integer(name, Limits::min(), kMost);
    return value ? std::optional(static_cast<Number>(*value)) : std::nullopt;
  }

  // Seconds within the table's range, with or without a fraction. `written`: what the user has set instead.
  std::optional<std::chrono::milliseconds> duration(const char* name, std::string_view written = {}) const;

 private:
  std::optional<std::int64_t> integer(const char* name, std::int64_t least, std::int64_t most) const;

  Environment environment_;
};

// A decimal number from `least` to `most` that is the whole text. Error{invalid_argument}: "<name> is '<text>'; it can
// be 1 to 64".
std::int64_t parse_integer(std::string_view name, std::string_view text, std::int64_t least, std::int64_t most);

// A sentence for each LOCKSTEP_ variable of the list ("NAME=value", null-terminated) that Lockstep does not have, with
// the name that may be meant. What begins with LOCKSTEP_TEST_ or LOCKSTEP_BENCH_ belongs to tests and benchmarks.
std::vector<std::string> describe_unknown_variables(const char* const* environment);
// Those of this process, as warnings in the log. Only the first call does anything.
void warn_of_unknown_variables();

}  // namespace lockstep::internal
