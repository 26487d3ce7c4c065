#include "lockstep/base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

constexpr std::string_view kPrefix = "LOCKSTEP_";
constexpr std::array<std::string_view, 2> kForeign{"LOCKSTEP_TEST_", "LOCKSTEP_BENCH_"};
constexpr std::size_t kFarthestMeant = 3;  // changed letters in a name that is still taken for a typing mistake

// Sorted. docs/VARIABLES.md explains them; a test compares.
constexpr std::string_view kVariables[] = {
    "LOCKSTEP_ADDRESS",      "LOCKSTEP_BACKEND",   "LOCKSTEP_BIND",       "LOCKSTEP_CHECKSUMS",  "LOCKSTEP_CONNECTIONS",
    "LOCKSTEP_FLIGHT",       "LOCKSTEP_FLIGHT_FD", "LOCKSTEP_GENERATION", "LOCKSTEP_IFNAME",     "LOCKSTEP_JOB_ID",
    "LOCKSTEP_LAUNCHER",     "LOCKSTEP_LOG",       "LOCKSTEP_NODE",       "LOCKSTEP_OUTER_JOBS", "LOCKSTEP_SPAWN",
    "LOCKSTEP_SPAWN_REPORT", "LOCKSTEP_STORE",     "LOCKSTEP_TERMINAL",   "LOCKSTEP_TOKEN_FD",   "LOCKSTEP_TOKEN_FILE",
    "LOCKSTEP_TRANSPORT",
};
static_assert(std::ranges::is_sorted(kVariables));

bool same_letters(std::string_view one, std::string_view other) {
  return std::ranges::equal(one, other,
                            [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
}

// How many letters have to be changed, added or left out to make one of the other (Levenshtein).
std::size_t distance(std::string_view one, std::string_view other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), 0U);
  for (std::size_t i = 0; i < one.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < other.size(); ++j) {
      const std::size_t replaced = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string describe_range(std::int64_t least, std::int64_t most) {
  if (most < std::numeric_limits<int>::max()) return fmt::format("; it can be {} to {}", least, most);
  return least < 0 ? ", not an integer" : fmt::format(", not an integer from {} on", least);
}

// "a, b or c"
std::string alternatives(std::span<const std::string_view> names) {
  return fmt::format("{} or {}", fmt::join(names.first(names.size() - 1), ", "), names.back());
}

std::string describe_unknown(std::string_view name) {
  const auto* nearest = std::ranges::min_element(kVariables, {}, [&](auto known) { return distance(name, known); });
  if (distance(name, *nearest) <= kFarthestMeant) {
    return fmt::format("{} is set, but it is no variable of Lockstep and has no effect; is {} meant?", name, *nearest);
  }
  return fmt::format("{} is set, but it is no variable of Lockstep and has no effect; there are: {}", name,
                     fmt::join(kVariables, ", "));
}

}  // namespace

const char* process_environment(const char* name) { return std::getenv(name); }

std::optional<std::string> EnvironmentReader::text(const char* name) const {
  const char* value = environment_ ? environment_(name) : nullptr;
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

bool EnvironmentReader::has_any_of(std::initializer_list<const char*> names) const {
  return std::ranges::any_of(names, [this](const char* name) { return has(name); });
}

std::optional<std::string> EnvironmentReader::first_of(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    if (auto value = text(name)) return value;
  }
  return std::nullopt;
}

std::int64_t EnvironmentReader::parse(const char* name, const std::string& text, std::int64_t least,
                                      std::int64_t most) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if (result.ec == std::errc() && result.ptr == end && number >= least && number <= most) return number;
  throw Error(ErrorKind::invalid_argument, fmt::format("{} is '{}'{}", name, text, describe_range(least, most)));
}

std::optional<std::size_t> EnvironmentReader::choice(const char* name, std::span<const std::string_view> names) const {
  const auto value = text(name);
  if (!value) return std::nullopt;
  const auto found = std::ranges::find_if(names, [&](std::string_view known) { return same_letters(known, *value); });
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  throw Error(ErrorKind::invalid_argument, fmt::format("{} is '{}'; it can be {}", name, *value, alternatives(names)));
}

std::span<const std::string_view> known_variables() { return kVariables; }

std::vector<std::string> describe_unknown_variables(const char* const* environment) {
  std::vector<std::string> sentences;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with(kPrefix) || std::ranges::binary_search(kVariables, name)) continue;
    if (std::ranges::any_of(kForeign, [&](std::string_view prefix) { return name.starts_with(prefix); })) continue;
    sentences.push_back(describe_unknown(name));
  }
  std::ranges::sort(sentences);
  return sentences;
}

void warn_of_unknown_variables() {
  static std::atomic_flag done;
  if (done.test_and_set()) return;
  for (const std::string& sentence : describe_unknown_variables(::environ)) log_warning(sentence);
}

}  // namespace lockstep
