// Reports a number of the program, such as its loss, to the job's metrics (lockstep run --metrics-port):
//   lockstep::report_value("loss", loss);
#pragma once

#include <string_view>

namespace lockstep {

// Sets the value of this name on this rank. Takes some nanoseconds and does not block; does nothing without
// `lockstep run`. Any thread may call. Names have 1 to 31 letters, digits, and _ . / -: anything else is
// Error{invalid_argument}. The limit is 16 names; further ones are ignored, with one warning.
void report_value(std::string_view name, double value);

}  // namespace lockstep
