// Which name was meant by one that does not exist. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::internal {

// The nearest of `names`, if it differs by no more than `most` letters that are changed, added or left out.
std::optional<std::string> nearest_name(std::string_view name, std::span<const std::string> names, std::size_t most);

}  // namespace lockstep::internal
