#include "lockstep/base/machine.h"

#include <sys/sysinfo.h>

namespace lockstep {

std::size_t machine_memory_bytes() {
  struct sysinfo info {};
  ::sysinfo(&info);
  return static_cast<std::size_t>(info.totalram) * info.mem_unit;
}

}  // namespace lockstep
