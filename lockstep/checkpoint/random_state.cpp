#include "lockstep/checkpoint/random_state.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep {

void add_random_state(Checkpoint& checkpoint, const std::string& name) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  checkpoint.tensors.insert_or_assign(name, generator.get_state());
}

void load_random_state(const Checkpoint& checkpoint, const std::string& name) {
  const auto found = checkpoint.tensors.find(name);
  if (found == checkpoint.tensors.end()) {
    throw Error(ErrorKind::invalid_argument, fmt::format("the checkpoint has no random state '{}'", name));
  }
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  try {
    generator.set_state(found->second);
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("'{}' is no state of a CPU generator: {}", name, error.what_without_backtrace()));
  }
}

}  // namespace lockstep
