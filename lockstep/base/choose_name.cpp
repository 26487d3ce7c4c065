#include "lockstep/base/choose_name.h"

#include <algorithm>
#include <cctype>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

bool same_letters(std::string_view one, std::string_view other) {
  return std::ranges::equal(one, other,
                            [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
}

}  // namespace

std::string_view choose_name(std::string_view option, std::string_view given, std::span<const std::string_view> known) {
  for (const std::string_view name : known) {
    if (same_letters(name, given)) return name;
  }
  throw Error(ErrorKind::invalid_argument, fmt::format("{} is '{}'; it can be {}", option, given, alternatives(known)));
}

std::string alternatives(std::span<const std::string_view> names) {
  if (names.size() == 1) return std::string(names.front());
  return fmt::format("{} or {}", fmt::join(names.first(names.size() - 1), ", "), names.back());
}

}  // namespace lockstep::internal
