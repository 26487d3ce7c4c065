// A text as a shell reads it as one word. Pure.
#pragma once

#include <string>

namespace lockstep::internal {

// "a b" -> "'a b'"; what needs no quotes stays as it is.
std::string shell_quoted(const std::string& text);

}  // namespace lockstep::internal
