// Suggests the option of `lockstep run` that an unknown option was meant to be. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tools {

// "; did you mean --nproc-per-node?", or empty. word: as written, "-np", "--nproc=2". options: "--nproc-per-node", ...
std::string option_hint(std::string_view word, const std::vector<std::string>& options);

}  // namespace lockstep::tools
