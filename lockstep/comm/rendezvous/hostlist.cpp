#include "lockstep/comm/rendezvous/hostlist.h"

#include <charconv>
#include <cstdint>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostEntries = 65536;

Error bad_list(std::string_view list, std::string_view why) {
  return Error(ErrorKind::invalid_argument, fmt::format("the list '{}' from Slurm cannot be read: {}", list, why));
}

// The list's entries: commas within brackets do not part them.
std::vector<std::string_view> split(std::string_view list, std::string_view whole) {
  std::vector<std::string_view> entries;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && list[i] == '[') ++depth;
    if (i < list.size() && list[i] == ']') --depth;
    if (depth < 0 || depth > 1 || (i == list.size() && depth != 0)) throw bad_list(whole, "its brackets do not match");
    if (i < list.size() && (list[i] != ',' || depth > 0)) continue;
    if (i == start) throw bad_list(whole, "an entry is empty");
    entries.push_back(list.substr(start, i - start));
    start = i + 1;
  }
  return entries;
}

std::uint64_t to_number(std::string_view text, std::string_view whole) {
  std::uint64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || result.ec != std::errc() || result.ptr != text.data() + text.size()) {
    throw bad_list(whole, fmt::format("'{}' is not a number", text));
  }
  return number;
}

// "01-03,7" -> "01", "02", "03", "7"
std::vector<std::string> expand_range_list(std::string_view ranges, std::string_view whole) {
  std::vector<std::string> texts;
  for (const std::string_view range : split(ranges, whole)) {
    const std::size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const std::string_view high = dash == std::string_view::npos ? low : range.substr(dash + 1);
    const std::uint64_t first = to_number(low, whole);
    const std::uint64_t last = to_number(high, whole);
    if (last < first) throw bad_list(whole, fmt::format("the range '{}' ends before it begins", range));
    if (last - first >= kMostEntries - texts.size()) throw bad_list(whole, "it is too long");
    for (std::uint64_t number = first; number <= last; ++number) {
      texts.push_back(fmt::format("{:0{}}", number, low.size()));
    }
  }
  return texts;
}

// "rack[1-2]n[1-4]" -> "rack1n1", "rack1n2", ...
std::vector<std::string> expand_name(std::string_view name, std::string_view whole) {
  std::vector<std::string> made{""};
  while (!name.empty()) {
    const std::size_t open = name.find('[');
    for (std::string& text : made) text += name.substr(0, open);
    if (open == std::string_view::npos) break;
    const std::size_t close = name.find(']', open);
    const std::vector<std::string> numbers = expand_range_list(name.substr(open + 1, close - open - 1), whole);
    if (made.size() * numbers.size() > kMostEntries) throw bad_list(whole, "it is too long");
    std::vector<std::string> longer;
    for (const std::string& text : made) {
      for (const std::string& number : numbers) longer.push_back(text + number);
    }
    made = std::move(longer);
    name.remove_prefix(close + 1);
  }
  return made;
}

}  // namespace

std::vector<std::string> expand_hosts(std::string_view list) {
  std::vector<std::string> hosts;
  for (const std::string_view name : split(list, list)) {
    for (std::string& host : expand_name(name, list)) hosts.push_back(std::move(host));
    if (hosts.size() > kMostEntries) throw bad_list(list, "it is too long");
  }
  return hosts;
}

std::vector<int> expand_counts(std::string_view list) {
  std::vector<int> counts;
  for (std::string_view item : split(list, list)) {
    std::uint64_t times = 1;
    if (const std::size_t open = item.find("(x"); open != std::string_view::npos && item.back() == ')') {
      times = to_number(item.substr(open + 2, item.size() - open - 3), list);
      item = item.substr(0, open);
    }
    const std::uint64_t count = to_number(item, list);
    if (count > kMostEntries || times > kMostEntries - counts.size()) throw bad_list(list, "it is too long");
    counts.insert(counts.end(), times, static_cast<int>(count));
  }
  return counts;
}

}  // namespace lockstep::internal
