#include "lockstep/rendezvous/url.h"

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/rendezvous/handlers.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 2> kQueryKeys{"rank", "world_size"};

Error bad_url(std::string_view text, const std::string& why) {
  return Error(ErrorKind::invalid_argument, fmt::format("init_method '{}': {}", text, why));
}

// known: whether it may have no other keys than kQueryKeys.
void parse_query(std::string_view query, std::string_view text, bool known, Url& url) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const std::size_t equals = pair.find('=');
    const std::string_view key = pair.substr(0, equals);
    if (known && std::find(kQueryKeys.begin(), kQueryKeys.end(), key) == kQueryKeys.end()) {
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
  const std::vector<std::string> schemes = rendezvous_schemes();
  const std::size_t separator = text.find("://");
  if (separator == std::string_view::npos) {
    throw bad_url(text, fmt::format("it has no scheme; known: {}://", fmt::join(schemes, "://, ")));
  }
  Url url;
  url.scheme = text.substr(0, separator);
  if (std::find(schemes.begin(), schemes.end(), url.scheme) == schemes.end()) {
    throw bad_url(text,
                  fmt::format("the scheme '{}' is not known; known: {}://", url.scheme, fmt::join(schemes, "://, ")));
  }
  const bool own = find_rendezvous_handler(url.scheme) == nullptr;
  const std::string_view rest = text.substr(separator + 3);
  const std::size_t question = rest.find('?');
  url.target = rest.substr(0, question);
  if (question != std::string_view::npos) parse_query(rest.substr(question + 1), text, own, url);
  return url;
}

}  // namespace lockstep
