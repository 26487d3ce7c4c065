// All that the bits of a computation depend on besides program, data and number of threads: versions, vector
// instructions, torch's settings, the environment that chooses kernels, and the results of a few kernels for fixed
// numbers. this process -> Arithmetic -> compared among ranks, and with a checkpoint. A value; any thread.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::internal {

struct Arithmetic {
  std::vector<std::pair<std::string, std::string>> facts;  // name and value, in a fixed order
};

// As it is now, in the calling thread. threads: of a computation; with several, also the limits of their number.
// devices: that compute as well as the host, one of each type. Takes a few milliseconds.
Arithmetic arithmetic_here(int threads, const std::vector<at::Device>& devices = {});

// One fact a line, "name: value". parse_arithmetic() ignores lines of another form.
std::string text_of(const Arithmetic& arithmetic);
Arithmetic parse_arithmetic(std::string_view text);

// Each fact that differs, "name: value before, now value"; "nothing" for a fact that one of them lacks.
std::vector<std::string> changes(const Arithmetic& before, const Arithmetic& now);

}  // namespace lockstep::internal
