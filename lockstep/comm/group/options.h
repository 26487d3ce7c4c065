// The options of a group, and those of one of its calls. Values.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/collective/engine.h"
#include "lockstep/comm/health/wait_reports.h"
#include "lockstep/comm/transport/tcp_mesh.h"

namespace lockstep {

using internal::AfterMismatch;
using internal::CallSites;
using internal::Checksums;

enum class Transport { automatic, shared_memory, tcp };

struct GroupOptions {
  // What runs collectives: "native", or another one of backends() in adapters/backends.h, which then decides on the
  // transport. Empty: LOCKSTEP_BACKEND, else "native". The same on all ranks. Messages are Lockstep's with all of them.
  std::string backend = {};
  // Of each call. As long as PyTorch's, since one rank may have much to do alone; a death does not take that long.
  Duration timeout = std::chrono::minutes(30);
  // After which a collective or message that waits logs for whom, and how that rank is doing; then more rarely.
  Duration first_report = internal::kFirstReport;
  // automatic: memory between ranks of one node, TCP between nodes. The same on all ranks.
  Transport transport = Transport::automatic;
  // Of TCP, for the data of every two ranks on different nodes. The same on all ranks.
  int connections = 1;
  // Of TCP: whether data between ranks on different nodes carries checksums, so that damaged data is
  // Error{corrupt_data} on all ranks instead of a wrong result. LOCKSTEP_CHECKSUMS=off turns them off. The same on all
  // ranks.
  Checksums checksums = Checksums::on;
  // What becomes of the group if ranks make different calls. It goes on if all ranks are known to have the error: not
  // if they differ in buckets of DistributedDataParallel, nor if a rank is missing for 5 s. The same on all ranks.
  AfterMismatch after_mismatch = AfterMismatch::go_on;
  // What happens to equal calls without a name that ranks make in different lines of their program.
  CallSites call_sites = CallSites::warn;
  // Where tensors in objects come, if they were on a device of its type. Nothing: on the current device of the
  // receiving thread; of a part of a group: that of the group.
  std::optional<c10::Device> device = {};
};

struct CallOptions {
  std::optional<Duration> timeout = {};   // instead of the group's
  std::optional<Deadline> deadline = {};  // instead of a timeout: of several calls together
  std::string_view name = {};             // of the data; ranks that give different names get Error{desync}
  std::uint64_t number = 0;               // goes with the name, as the number of a step; ranks must give the same
  // Of reductions; see Order. With other backends than the native one, only two ranks make a tree.
  Order order = Order::ranks;
  // Of the *_async forms: the caller runs the collective, and gets a finished Work. Cheaper than the group's thread if
  // it would wait at once.
  bool in_caller = false;
  // Where the call is: tells calls without a name apart, see GroupOptions::call_sites.
  std::source_location where = std::source_location::current();
};

}  // namespace lockstep
