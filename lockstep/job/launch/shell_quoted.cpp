#include "lockstep/job/launch/shell_quoted.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace lockstep::internal {

std::string shell_quoted(const std::string& text) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("/._-+=:,@%").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!text.empty() && std::ranges::all_of(text, plain)) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace lockstep::internal
