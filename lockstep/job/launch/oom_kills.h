// OomKills counts the processes that the kernel has killed for lack of memory since it was made: in this process's
// cgroup if its counters can be read (version 2 or 1), and on the whole machine, since a rank may have a cgroup of its
// own. Reads a few files; a file that cannot be read is not an error.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::internal {

class RankCgroup;

class OomKills {
 public:
  // A file's content, nothing if it cannot be read. Replaced in tests.
  using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;

  OomKills();
  explicit OomKills(ReadFile read_file);

  struct Verdict {
    std::string text;
    std::optional<bool> out_of_memory;  // nothing: nobody can tell
  };
  // Why a process with this peak of memory got SIGKILL: "memory ran out: the kernel has killed 1 process of cgroup /job
  // ..." or "possibly for lack of memory: ..." or "sent by a process; ...".
  // `own`: a group that the process had alone, and then known for certain; null: it had none.
  Verdict judge_kill(std::int64_t peak_bytes, const RankCgroup* own = nullptr) const;
  // The same of what memory.events of that group says, and its limit (0: none).
  static Verdict judge_own(const std::string& events, std::int64_t limit_bytes, const std::string& used);

 private:
  struct Counter {
    std::string path;
    std::string whose;  // "cgroup /job", "this machine"
    std::uint64_t before = 0;
  };

  std::optional<std::uint64_t> read(const std::string& path) const;
  // Those since then; nothing if that is not known.
  std::optional<std::uint64_t> since(const std::optional<Counter>& counter) const;

  ReadFile read_file_;
  std::optional<Counter> cgroup_;
  std::optional<Counter> machine_;
};

}  // namespace lockstep::internal
