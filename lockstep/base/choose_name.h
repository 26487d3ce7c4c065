// Names of which a user writes one. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep::internal {

// The one of `known` that was given, in upper or lower case. Error{invalid_argument}: "<option> is '<given>'; it can be
// a, b or c".
std::string_view choose_name(std::string_view option, std::string_view given, std::span<const std::string_view> known);
// {"a", "b", "c"} -> "a, b or c"
std::string alternatives(std::span<const std::string_view> names);

}  // namespace lockstep::internal
