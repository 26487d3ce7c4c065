// The URLs of init_method. text -> Url. Pure.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace lockstep {

struct Url {
  std::string scheme;  // "env", "tcp", "file", or one that was registered; see handlers.h
  std::string target;  // what stands between "://" and "?"
  std::map<std::string, std::string> query;
};

// Error{invalid_argument} quotes the text; an unknown scheme or query key lists the known ones.
Url parse_url(std::string_view text);

}  // namespace lockstep
