// A number of the program's own, such as its loss, for those who watch the job (lockstep run --metrics-port):
//   lockstep::report_value("loss", loss);
#pragma once

#include <string_view>

namespace lockstep {

// The value that this name has from now on, on this rank. Costs some nanoseconds and does not block; does nothing
// without `lockstep run`. Any thread may call. Names have 1 to 31 letters, digits, and _ . / -: anything else is
// Error{invalid_argument}. There is room for 16 names; more are left out, with one warning.
void report_value(std::string_view name, double value);

}  // namespace lockstep
