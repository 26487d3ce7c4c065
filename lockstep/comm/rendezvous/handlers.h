// Custom ways to find the other ranks: a scheme of init_method and its handler. URL -> handler -> store.
//   lockstep::register_rendezvous_handler("etcd", [](const Url& url, Deadline deadline) -> Rendezvous { ... });
//   lockstep::init_process_group({.init_method = "etcd://host:2379/job7?rank=1"});
// One table per process. Thread-safe.
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
  std::string target;  // the text between "://" and "?"
  std::map<std::string, std::string> query;
};

// Error{invalid_argument} quotes the text; an unknown scheme or query key lists the known ones.
Url parse_url(std::string_view text);

// The result of a handler: a store that all ranks of the job share, and this process's rank.
struct Rendezvous {
  std::shared_ptr<Store> store;
  int rank = 0;
  int world_size = 1;
};

// Called by join(), which throws its exceptions. The query of its URLs may have any keys.
using RendezvousHandler = std::function<Rendezvous(const Url& url, Deadline deadline)>;

// Error{invalid_argument} if the scheme already has a handler, is built in, or is empty.
void register_rendezvous_handler(const std::string& scheme, RendezvousHandler handler);

// All known schemes: "env", "tcp", "file", and the registered ones.
std::vector<std::string> rendezvous_schemes();
// Null if the scheme is not registered.
RendezvousHandler find_rendezvous_handler(std::string_view scheme);

}  // namespace lockstep
