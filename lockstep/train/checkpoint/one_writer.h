// If all ranks of a job save the same checkpoint without a group, as in programs that do not check for rank 0, one rank
// writes it. One process at a time saves into a directory; a later one finds the earlier writer. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

// The identity that a launcher gave this process, for Manifest::written: "job" and "rank". Empty without a launcher, or
// if it is the job's only process. With "save", the number of the save, it identifies a save of a rank.
std::map<std::string, std::string> writer_identity(const EnvironmentReader& environment);
// The same for when it writes: this machine's start, and its uptime, which no change of its clock affects.
std::map<std::string, std::string> moment_of_writing();

// How many times a process has saved each set, so that a step that ranks save again is written again. For sets beyond
// the last kMost it remembers only the largest number, an upper bound for all of them.
class SaveNumbers {
 public:
  static constexpr std::size_t kMost = 64;
  // 1 at the first save of a set.
  std::uint64_t next(const std::filesystem::path& set);
  std::size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::filesystem::path, std::uint64_t> numbers_;
  std::deque<std::filesystem::path> order_;  // the oldest first
  std::uint64_t forgotten_ = 0;
};
// This process's.
SaveNumbers& save_numbers();

class WriterTurn {
 public:
  // Makes the directory, and waits for others that save into it. Error{timeout} names it; Error{invalid_argument} as of
  // SetDirectory.
  WriterTurn(const std::filesystem::path& directory, Deadline deadline);

  // Whether another rank of this job has saved the step since this process started, as often as this one does with save
  // number `number`.
  bool is_saved(std::uint64_t step, const std::map<std::string, std::string>& identity, std::uint64_t number) const;

 private:
  std::filesystem::path directory_;
  UniqueFd lock_;
};

}  // namespace lockstep::internal
