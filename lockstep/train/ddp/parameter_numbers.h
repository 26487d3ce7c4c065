// Which of a program's parameters a collective is about, as a text for its name: ranks compare it, so that parameters
// of equal size never meet. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal {

// numbers: ascending, from 0. ("average_gradients", {0, 1, 2, 5}) -> "average_gradients of parameters 0-2 5".
std::string name_with_numbers(std::string_view what, const std::vector<std::size_t>& numbers);

}  // namespace lockstep::internal
