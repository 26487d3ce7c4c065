#include "lockstep/base/observe/backward_name.h"

#include <charconv>
#include <system_error>

namespace lockstep::internal {

std::optional<int> backward_of_first_bucket(std::string_view name) {
  if (!name.starts_with(kGradientBucket) || !name.substr(kGradientBucket.size()).starts_with("0 ")) return std::nullopt;
  const std::size_t at = name.rfind(kOfBackward);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view number = name.substr(at + kOfBackward.size());
  int backward = 0;
  if (!number.starts_with(' ')) return std::nullopt;
  const auto [end, error] = std::from_chars(number.data() + 1, number.data() + number.size(), backward);
  const bool is_whole = error == std::errc() && end == number.data() + number.size() && backward >= 0;
  return is_whole ? std::optional(backward) : std::nullopt;
}

}  // namespace lockstep::internal
