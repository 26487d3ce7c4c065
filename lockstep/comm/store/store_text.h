// How errors name keys and ranks. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::internal {

// In quotes, cut to a readable length, unprintable bytes as \xNN.
std::string quote_key(std::string_view key);
// "'a', 'b' and 7 more"
std::string list_keys(std::span<const std::string> keys);
// "rank 3", "ranks 0, 2 and 5", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"
std::string list_ranks(const std::vector<int>& ranks);
// Error{timeout} of an operation that waited for keys nobody set.
Error missing_keys_error(std::string_view operation, std::span<const std::string> keys, Duration waited);

// Throw Error{invalid_argument} that states the limit.
void check_store_key(std::string_view key);
void check_store_value(std::string_view key, std::string_view value);

}  // namespace lockstep::internal
