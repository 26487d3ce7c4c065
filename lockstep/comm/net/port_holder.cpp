#include "lockstep/comm/net/port_holder.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <vector>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

namespace fs = std::filesystem;

// What /proc/<pid>/fd/<n> links to for each socket that listens on the port: "socket:[4711]".
std::set<std::string> listening_sockets(std::uint16_t port) {
  std::set<std::string> links;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      // slot, local address:port, remote, state (0A is LISTEN), queues, timer, retransmits, uid, timeout, inode
      std::istringstream stream(line);
      std::vector<std::string> columns{std::istream_iterator<std::string>(stream), {}};
      if (columns.size() < 10 || columns[3] != "0A") continue;
      const std::size_t colon = columns[1].rfind(':');
      if (colon == std::string::npos || columns[1].substr(colon + 1) != fmt::format("{:04X}", port)) continue;
      links.insert(fmt::format("socket:[{}]", columns[9]));
    }
  }
  return links;
}

bool holds(const fs::path& process, const std::set<std::string>& links) {
  std::error_code error;
  for (fs::directory_iterator fd(process / "fd", error), end; !error && fd != end; fd.increment(error)) {
    std::error_code gone;
    if (links.contains(fs::read_symlink(fd->path(), gone).string())) return true;
  }
  return false;
}

std::string find_holder(std::uint16_t port) {
  const std::set<std::string> links = listening_sockets(port);
  if (links.empty()) return "";
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end; process.increment(error)) {
    const std::string pid = process->path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos || !holds(process->path(), links)) continue;
    std::string command;
    std::ifstream comm(process->path() / "comm");
    std::getline(comm, command);
    return fmt::format("process {} ({})", pid, command);
  }
  return "";
}

}  // namespace

std::string describe_port_holder(std::uint16_t port) noexcept {
  try {
    return find_holder(port);
  } catch (...) {
    return "";
  }
}

}  // namespace lockstep::internal
