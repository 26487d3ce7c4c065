#include "lockstep/rendezvous/handlers.h"

#include <map>
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

}  // namespace

void register_rendezvous_handler(const std::string& scheme, RendezvousHandler handler) {
  if (scheme.empty() || handler == nullptr) {
    throw Error(ErrorKind::invalid_argument, "register_rendezvous_handler: give a scheme and a function");
  }
  Handlers& all = handlers();
  const std::lock_guard lock(all.mutex);
  if (is_own(scheme) || !all.by_scheme.emplace(scheme, std::move(handler)).second) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("register_rendezvous_handler: the scheme '{}' has a handler already", scheme));
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

}  // namespace lockstep
