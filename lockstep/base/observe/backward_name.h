// What DDP calls the collectives of a backward, for those who write the names and those who read them in recordings:
// "gradient bucket 3 (fc.weight, fc.bias) of backward", followed by the number of the backward. Pure.
#pragma once

#include <optional>
#include <string_view>

namespace lockstep::internal {

inline constexpr std::string_view kGradientBucket = "gradient bucket ";  // then its number
inline constexpr std::string_view kOfBackward = " of backward";

// 17 for "gradient bucket 0 (...) of backward 17"; nothing for other names. Each backward has one such bucket.
std::optional<int> backward_of_first_bucket(std::string_view name);

}  // namespace lockstep::internal
