// Environment variables are read by one rule. An empty one counts as not set, as shell scripts mean it; a value that
// cannot be is Error{invalid_argument}, which quotes it and says what it can be. docs/VARIABLES.md has all of them.
// Thread-safe, as long as nobody changes the environment meanwhile.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

using Environment = std::function<const char*(const char* name)>;  // std::getenv's shape
const char* process_environment(const char* name);

class EnvironmentReader {
 public:
  explicit EnvironmentReader(Environment environment = process_environment) : environment_(std::move(environment)) {}

  std::optional<std::string> text(const char* name) const;
  bool has(const char* name) const { return text(name).has_value(); }
  bool has_any_of(std::initializer_list<const char*> names) const;
  // The first that is set.
  std::optional<std::string> first_of(std::initializer_list<const char*> names) const;

  template <std::integral Number = int>
  std::optional<Number> number(const char* name, Number least = std::numeric_limits<Number>::min(),
                               Number most = std::numeric_limits<Number>::max()) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    return checked_number(name, *value, least, most);
  }

  // The index of the value among the names that it can be; upper and lower case are the same.
  std::optional<std::size_t> choice(const char* name, std::span<const std::string_view> names) const;

 private:
  static std::int64_t parse(const char* name, const std::string& text, std::int64_t least, std::int64_t most);
  template <std::integral Number>
  static Number checked_number(const char* name, const std::string& text, Number least, Number most) {
    constexpr auto kLimit = std::numeric_limits<std::int64_t>::max();
    const std::int64_t limit = std::cmp_greater(most, kLimit) ? kLimit : static_cast<std::int64_t>(most);
    return static_cast<Number>(parse(name, text, static_cast<std::int64_t>(least), limit));
  }

  Environment environment_;
};

// All variables of Lockstep's own, LOCKSTEP_..., sorted.
std::span<const std::string_view> known_variables();

// A sentence for each LOCKSTEP_ variable of the list ("NAME=value", null-terminated) that Lockstep does not have, with
// the name that may be meant. What begins with LOCKSTEP_TEST_ or LOCKSTEP_BENCH_ belongs to tests and benchmarks.
std::vector<std::string> describe_unknown_variables(const char* const* environment);
// Those of this process, as warnings in the log. Only the first call does anything.
void warn_of_unknown_variables();

}  // namespace lockstep
