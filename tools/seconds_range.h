// What an option holds that is a time: a number of seconds. For CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <string>

namespace lockstep::tools {

// Also refuses nan, unlike CLI::Range. The default is a year.
CLI::Validator seconds_range(double least, double most = 86400.0 * 365);

// Error{invalid_argument}: "<name> is '<text>'; it can be 0 to 60 seconds".
std::chrono::milliseconds parse_seconds(const std::string& name, const std::string& text, double least, double most);

}  // namespace lockstep::tools
