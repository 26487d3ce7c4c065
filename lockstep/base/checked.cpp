#include "lockstep/base/checked.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kShownBytes = 40;

// As an error may show it: without control characters, not endless.
std::string shown(std::string_view text) {
  std::string cut(text.substr(0, kShownBytes));
  std::ranges::replace_if(
      cut, [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return cut + (text.size() > kShownBytes ? "..." : "");
}

}  // namespace

std::string to_string(const Origin& origin) {
  if (origin.rank < 0) return std::string(origin.what);
  return fmt::format("rank {}'s {}", origin.rank, origin.what);
}

void throw_corrupt(const Origin& origin, std::string_view why) {
  throw Error(ErrorKind::corrupt_data, fmt::format("{}: {}", to_string(origin), why), {.peer = origin.rank});
}

void throw_wrong_number(const Origin& origin, std::string_view name, const std::string& value, const std::string& least,
                        const std::string& most) {
  throw_corrupt(origin, least == most ? fmt::format("the {} is {}; expected {}", name, value, least)
                                      : fmt::format("the {} is {}; expected {} to {}", name, value, least, most));
}

double checked_weight(double value, std::string_view name, const Origin& origin) {
  if (!std::isfinite(value) || value < 0) {
    throw_corrupt(origin, fmt::format("the {} is {}; expected a finite number of at least 0", name, value));
  }
  return value;
}

std::size_t checked_bytes(std::span<const std::int64_t> sizes, std::size_t element, std::size_t most,
                          std::string_view name, const Origin& origin) {
  std::size_t bytes = element;
  bool is_empty = false;
  for (const std::int64_t size : sizes) {
    const std::size_t factor = checked_size(size, std::numeric_limits<std::int64_t>::max(), name, origin);
    is_empty = is_empty || factor == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::size_t>(factor, 1), &bytes) || bytes > most) {
      throw_corrupt(origin,
                    fmt::format("the {} is {}, which takes more than {} bytes", name, fmt::join(sizes, " x "), most));
    }
  }
  return is_empty ? 0 : bytes;
}

std::vector<std::size_t> checked_permutation(std::span<const std::int64_t> numbers, std::string_view name,
                                             const Origin& origin) {
  std::vector<std::size_t> order;
  std::vector<bool> seen(numbers.size());
  for (const std::int64_t number : numbers) {
    const std::size_t index = checked_index(number, numbers.size(), name, origin);
    if (seen[index]) throw_corrupt(origin, fmt::format("the {} {} occurs twice", name, index));
    seen[index] = true;
    order.push_back(index);
  }
  return order;
}

std::int64_t checked_decimal(std::string_view text, std::string_view name, const Origin& origin) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) {
    throw_corrupt(origin, fmt::format("the {} is '{}', which is not a number", name, shown(text)));
  }
  return number;
}

void check_subsequence(std::span<const std::string> told, std::span<const std::string> of, std::string_view name,
                       const Origin& origin) {
  auto next = of.begin();
  for (const std::string& each : told) {
    next = std::find(next, of.end(), each);
    if (next == of.end()) throw_corrupt(origin, fmt::format("the {} '{}' was not requested", name, shown(each)));
    ++next;
  }
}

}  // namespace lockstep::internal
