#include "lockstep/comm/rendezvous/handlers.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep {
namespace {

struct Handlers {
  std::mutex mutex;
  // State below is protected by mutex.
  std::map<std::string, RendezvousHandler, std::less<>> by_scheme;
};

Handlers& handlers() {
  static Handlers& instance = *new Handlers;  // leaked on purpose: static objects of a program may register
  return instance;
}

bool is_own(std::string_view scheme) { return scheme == "env" || scheme == "tcp" || scheme == "file"; }

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
      throw bad_url(text,
                    fmt::format("'{}' is not a known query parameter; known: {}", key, fmt::join(kQueryKeys, ", ")));
    }
    if (equals == std::string_view::npos) throw bad_url(text, fmt::format("'{}' has no value", key));
    if (!url.query.emplace(key, pair.substr(equals + 1)).second) {
      throw bad_url(text, fmt::format("'{}' is given twice", key));
    }
  }
}

}  // namespace

void register_rendezvous_handler(const std::string& scheme, RendezvousHandler handler) {
  if (scheme.empty() || handler == nullptr) {
    throw Error(ErrorKind::invalid_argument, "register_rendezvous_handler: give a scheme and a function");
  }
  Handlers& all = handlers();
  const std::lock_guard lock(all.mutex);
  if (is_own(scheme) || !all.by_scheme.emplace(scheme, std::move(handler)).second) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("register_rendezvous_handler: the scheme '{}' already has a handler", scheme));
  }
}

std::vector<std::string> rendezvous_schemes() {
  std::vector<std::string> schemes{"env", "tcp", "file"};
  Handlers& all = handlers();
  const std::lock_guard lock(all.mutex);
  for (const auto& [scheme, handler] : all.by_scheme) schemes.push_back(scheme);
  return schemes;
}

RendezvousHandler find_rendezvous_handler(std::string_view scheme) {
  Handlers& all = handlers();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_scheme.find(scheme);
  return found == all.by_scheme.end() ? nullptr : found->second;
}

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
