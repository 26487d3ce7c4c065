// Where all ranks of a job save the same checkpoint without a group, as programs do that forgot to ask for rank 0, one
// of them writes it. One process at a time saves into a directory; who comes later finds who wrote before. Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

// What a launcher has told this process of its place, for Manifest::written: "job" and "rank". Empty without one, or if
// it is the only process of its job.
std::map<std::string, std::string> writer_identity(const EnvironmentReader& environment);

class WriterTurn {
 public:
  // Makes the directory, and waits for others that save into it. Error{timeout} names it; Error{invalid_argument} as of
  // SetDirectory.
  WriterTurn(const std::filesystem::path& directory, Deadline deadline);

  // Whether another rank of this job has saved the step since this process started.
  bool is_saved(std::uint64_t step, const std::map<std::string, std::string>& identity) const;

 private:
  std::filesystem::path directory_;
  UniqueFd lock_;
};

}  // namespace lockstep::internal
