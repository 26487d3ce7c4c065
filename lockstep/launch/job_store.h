// JobStore hosts the store of one attempt of a job. launcher -> JobStore <- ranks. Each attempt has a store of its own,
// which ends with it: what an earlier attempt wrote is never read. Thread-safe as a StoreServer.
#pragma once

#include <string>

#include "lockstep/net/token.h"
#include "lockstep/store/store_server.h"

namespace lockstep::internal {

class JobStore {
 public:
  // Listens at a free port of this address, which has to be one of this host's; clients reach it as `advertised` and
  // that port. Admits clients of this generation with this token. Throws Error{internal} if it cannot listen.
  JobStore(const std::string& listen, std::string advertised, const Token& token, const std::string& job_id,
           int world_size, int generation);

  // "127.0.0.1:4711"
  std::string endpoint() const;

 private:
  std::string advertised_;
  StoreServer server_;
};

// A port of 127.0.0.1 that nobody uses now, and that the kernel does not give to connections if such ports are left.
int free_port();

}  // namespace lockstep::internal
