// JobStore hosts the store of one attempt of a job. launcher -> JobStore <- ranks. Each attempt has a store of its own,
// which ends with it: what an earlier attempt wrote is never read. Thread-safe as a StoreServer.
#pragma once

#include <string>

#include "lockstep/comm/net/token.h"
#include "lockstep/comm/store/store_server.h"

namespace lockstep::internal {

class JobStore {
 public:
  // Listens at a free port of this address, which has to be one of this host's, and at which clients look for it;
  // "localhost" stands for the loopback address that there is. Admits clients of this generation with this token.
  // Throws Error{internal} if it cannot listen. Warns if that is of no use, since the loopback interface is down.
  JobStore(const std::string& listen, const Token& token, const std::string& job_id, int world_size, int generation);

  // "127.0.0.1:4711"
  std::string endpoint() const;
  const std::string& host() const { return host_; }

 private:
  StoreServer server_;
  std::string host_;
};

// A port of the loopback address that nobody uses now, and that the kernel does not give to connections if such ports
// are left.
int free_port();

}  // namespace lockstep::internal
