// OomKills counts the processes that the kernel has killed for lack of memory since it was made: in this process's
// cgroup if its counters can be read (version 2 or 1), else on the whole machine. Reads a file or two; a file that
// cannot be read is not an error.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::internal {

class OomKills {
 public:
  // A file's content, nothing if it cannot be read. Replaced in tests.
  using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;

  OomKills();
  explicit OomKills(ReadFile read_file);

  // Why a process with this peak of memory got SIGKILL: "memory ran out: the kernel has killed 1 process of cgroup /job
  // since the job began; ..." or "not for lack of memory: ..." or that nobody can tell.
  std::string describe_kill(std::int64_t peak_bytes) const;

 private:
  struct Counter {
    std::string path;
    std::string whose;  // "cgroup /job", "this machine"
  };

  std::optional<std::uint64_t> read(const std::string& path) const;

  ReadFile read_file_;
  std::optional<Counter> counter_;
  std::uint64_t before_ = 0;
};

}  // namespace lockstep::internal
