// The first call of DeviceCalls for a device, in which all ranks meet.
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/group/device_calls.h"
#include "lockstep/comm/group/introductions.h"
#include "lockstep/comm/group/torch_errors.h"

namespace lockstep::internal {

// All ranks come here with the same call, or none goes on. Afterwards all have a communicator, or none.
void DeviceCalls::meet(Line& line, const Collective& real, Deadline deadline) {
  const CommunicatorLibrary& library = *communicators_for(line.device.type());
  Introductions all;
  or_fail(real.kind, [&] { all = introduce(library, line.device, engine_.rank(), engine_.size()); });
  calls_.run(to_string(real.kind), deadline,
             [&](Engine& engine) { all.exchange(engine, real, line.mover(/*is_new=*/true), deadline); });
  if (const auto same = all.same_device()) {
    const std::string text = fmt::format("rank {} and rank {} use the same {}, so {} cannot connect them", same->first,
                                         same->second, line.device.is_cuda() ? "GPU" : "device", library.name);
    if (policy_ == Policy::required) {
      throw Error(ErrorKind::invalid_argument, text + "; give each rank a device, or use the native backend",
                  {.rank = engine_.rank()});
    }
    if (engine_.rank() == 0) log_warning(text + "; tensors of this group go through the host's memory: slower");
    return;
  }
  try {
    line.communicator = connect(line, all.id(), deadline);
  } catch (const Error& error) {
    fail(Error(
        error.kind(),
        fmt::format("rank {} could not connect to the others by {}: {}", engine_.rank(), library.name, error.what()),
        {.rank = engine_.rank(), .peer = error.detail().peer}));
    throw_if_failed();
  }
  std::unique_lock lock(mutex_);
  if (!failure_) return communicators_.push_back(line.communicator);
  lock.unlock();
  line.communicator->abort();
  throw_if_failed();
}

std::unique_ptr<Communicator> DeviceCalls::connect(const Line& line, const std::string& id, Deadline deadline) {
  std::unique_ptr<Communicator> made;
  as_errors("connecting devices", ErrorKind::internal, [&] {
    made = communicators_for(line.device.type())
               ->connect({.rank = engine_.rank(),
                          .size = engine_.size(),
                          .device = line.device,
                          .id = id,
                          .deadline = deadline,
                          .check_alive = [this] { calls_.run_if_free([](Engine& engine) { engine.check_peers(); }); }});
  });
  return made;
}

}  // namespace lockstep::internal
