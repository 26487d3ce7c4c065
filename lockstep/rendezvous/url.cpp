#include "lockstep/rendezvous/url.h"

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 3> kSchemes{"env", "tcp", "file"};
constexpr std::array<std::string_view, 2> kQueryKeys{"rank", "world_size"};

Error bad_url(std::string_view text, const std::string& why) {
  return Error(ErrorKind::invalid_argument, fmt::format("init_method '{}': {}", text, why));
}

void parse_query(std::string_view query, std::string_view text, Url& url) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const std::size_t equals = pair.find('=');
    const std::string_view key = pair.substr(0, equals);
    if (std::find(kQueryKeys.begin(), kQueryKeys.end(), key) == kQueryKeys.end()) {
      throw bad_url(text, fmt::format("'{}' is not known behind the '?'; known: {}", key, fmt::join(kQueryKeys, ", ")));
    }
    if (equals == std::string_view::npos) throw bad_url(text, fmt::format("'{}' has no value", key));
    if (!url.query.emplace(key, pair.substr(equals + 1)).second) {
      throw bad_url(text, fmt::format("'{}' is given twice", key));
    }
  }
}

}  // namespace

Url parse_url(std::string_view text) {
  const std::size_t separator = text.find("://");
  if (separator == std::string_view::npos) {
    throw bad_url(text, fmt::format("it has no scheme; known: {}://", fmt::join(kSchemes, "://, ")));
  }
  Url url;
  url.scheme = text.substr(0, separator);
  if (std::find(kSchemes.begin(), kSchemes.end(), url.scheme) == kSchemes.end()) {
    throw bad_url(text,
                  fmt::format("the scheme '{}' is not known; known: {}://", url.scheme, fmt::join(kSchemes, "://, ")));
  }
  const std::string_view rest = text.substr(separator + 3);
  const std::size_t question = rest.find('?');
  url.target = rest.substr(0, question);
  if (question != std::string_view::npos) parse_query(rest.substr(question + 1), text, url);
  return url;
}

}  // namespace lockstep
