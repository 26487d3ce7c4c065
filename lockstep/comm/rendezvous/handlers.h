// A program's own ways to find the other ranks: a scheme of init_method, and what it does. URL -> handler -> store.
//   lockstep::register_rendezvous_handler("etcd", [](const Url& url, Deadline deadline) -> Rendezvous { ... });
//   lockstep::init_process_group({.init_method = "etcd://host:2379/job7?rank=1"});
// The one table of the process. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/store/store.h"

namespace lockstep {

// A URL of init_method.
struct Url {
  std::string scheme;  // "env", "tcp", "file", or one that was registered
  std::string target;  // what stands between "://" and "?"
  std::map<std::string, std::string> query;
};

// Error{invalid_argument} quotes the text; an unknown scheme or query key lists the known ones.
Url parse_url(std::string_view text);

// What a handler finds: a store that all ranks of the job share, and this process's place.
struct Rendezvous {
  std::shared_ptr<Store> store;
  int rank = 0;
  int world_size = 1;
};

// Called by join(); what it throws, join() throws. The query of its URLs may have any keys.
using RendezvousHandler = std::function<Rendezvous(const Url& url, Deadline deadline)>;

// Error{invalid_argument} if the scheme has a handler already, is one of Lockstep's own, or is empty.
void register_rendezvous_handler(const std::string& scheme, RendezvousHandler handler);

// All that parse_url() knows: "env", "tcp", "file", and those that were registered.
std::vector<std::string> rendezvous_schemes();
// Null if it is not registered.
RendezvousHandler find_rendezvous_handler(std::string_view scheme);

}  // namespace lockstep
