#include "lockstep/base/machine.h"

#include <sys/sysinfo.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <fstream>

namespace lockstep::internal {

std::size_t machine_memory_bytes() {
  struct sysinfo info {};
  ::sysinfo(&info);
  return static_cast<std::size_t>(info.totalram) * info.mem_unit;
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace lockstep::internal
