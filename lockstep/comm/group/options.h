// The options of a group, and those of one of its calls. Values.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/collective/call_sites.h"
#include "lockstep/comm/collective/reduce_op.h"
#include "lockstep/comm/health/wait_reports.h"
#include "lockstep/comm/transport/checksums.h"

namespace lockstep {

struct GroupOptions {
  // The backend of collectives, one of backends() in adapters/backends.h; empty: what LOCKSTEP_BACKEND says. The same
  // on all ranks. "native" is Lockstep; "gloo" and "mpi" replace it, and choose the transport. "nccl" is Lockstep for
  // tensors of the host, and NCCL for those of GPUs, which "native" takes through the host. Without a name NCCL is used
  // where it can be: it cannot connect ranks that share a GPU. Messages always use Lockstep.
  std::string backend = {};
  // Of each call. As long as PyTorch's, since one rank may work alone for long; a dead rank is reported much earlier.
  Duration timeout = std::chrono::minutes(30);
  // After this long a waiting collective or message logs the missing ranks and their state; later again, less often.
  Duration first_report = internal::kFirstReport;
  // How data of the native backend travels: "tcp", "shared_memory", or "automatic": shared memory between ranks of one
  // node, TCP between nodes. Empty: LOCKSTEP_TRANSPORT, else "automatic". The same on all ranks.
  std::string transport = {};
  // TCP connections for the data of every two ranks on different nodes. The same on all ranks.
  int connections = 1;
  // Of TCP: whether data between ranks on different nodes carries checksums, so that damaged data is
  // Error{corrupt_data} on all ranks instead of a wrong result. LOCKSTEP_CHECKSUMS=off turns them off. The same on all
  // ranks.
  Checksums checksums = Checksums::on;
  // What to do if ranks make equal calls without a name in different lines of their program.
  CallSites call_sites = CallSites::warn;
  // The device on which tensors in objects arrive, if they were on one of its type. Nullopt: the current device of the
  // receiving thread; for a subgroup: that of the group.
  std::optional<c10::Device> device = {};
};

struct CallOptions {
  std::optional<Duration> timeout = {};   // instead of the group's
  std::optional<Deadline> deadline = {};  // instead of a timeout: of several calls together
  std::string_view name = {};             // of the data; ranks that give different names get Error{desync}
  std::uint64_t number = 0;               // goes with the name, as the number of a step; ranks must give the same
  // Of reductions; see Order. Backends other than the native one support trees of two ranks only.
  Order order = Order::ranks;
  // Of the *_async forms: the caller runs the collective, and gets a finished Work. Cheaper than the group's thread if
  // it would wait at once.
  bool in_caller = false;
  // Where the call is: distinguishes calls without a name, see GroupOptions::call_sites.
  std::source_location where = std::source_location::current();
};

}  // namespace lockstep
