// What an option holds that is a time: a number of seconds. For CLI11.
#pragma once

#include <CLI/CLI.hpp>

namespace lockstep::tools {

// Also refuses nan, unlike CLI::Range. The default is a year.
CLI::Validator seconds_range(double least, double most = 86400.0 * 365);

}  // namespace lockstep::tools
