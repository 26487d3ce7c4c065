// How stores speak about keys in errors. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep {

// In quotes, cut to a readable length, unprintable bytes as \xNN.
std::string quote_key(std::string_view key);
// "'a', 'b' and 7 more"
std::string list_keys(std::span<const std::string> keys);
// Error{timeout} of an operation that waited for keys nobody set.
Error missing_keys_error(std::string_view operation, std::span<const std::string> keys, Duration waited);

// Throw Error{invalid_argument} that states the limit.
void check_store_key(std::string_view key);
void check_store_value(std::string_view key, std::string_view value);

}  // namespace lockstep
