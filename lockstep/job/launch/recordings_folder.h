// Where the flight recordings of jobs are, and which ones are kept: one folder per job among the user's state files,
// and in it those of the first attempt, and a folder attempt_<n> for each later one. Removes nothing but flight
// recordings of this user, and their empty folders. Blocks on the disk.
#pragma once

#include <string>
#include <vector>

namespace lockstep::internal {

inline constexpr int kKeptJobs = 20;
inline constexpr int kKeptDays = 7;
inline constexpr int kKeptAttempts = 4;  // of a job: the first one, and the last ones

// $XDG_STATE_HOME/lockstep/flight, or that of ~/.local/state; empty if this user has no such folder.
std::string state_folder();
// Makes the folder for a job in `parent` and the folders above it (mode 0700), and returns its path. If `parent` is
// empty or cannot be made, a folder in $TMPDIR or /tmp. Throws Error{internal}, or {unauthorized} if it is another
// user's.
std::string make_job_folder(const std::string& parent, const std::string& job_id);
// The folder for an attempt's recordings in that of its job; the second makes it. Errors as above.
std::string attempt_folder(const std::string& job_folder, int attempt);
std::string make_attempt_folder(const std::string& job_folder, int attempt);

// The attempts that have left recordings in a job's folder, in order.
std::vector<int> recorded_attempts(const std::string& job_folder);
// The job in `parent` that has left recordings last; empty if none has.
std::string newest_job_folder(const std::string& parent);

// Removes recordings of jobs older than kKeptDays, and of all but the newest kKeptJobs. Never throws.
void prune_job_folders(const std::string& parent) noexcept;
// Removes recordings of attempts between the first and the last ones. Never throws.
void prune_attempts(const std::string& job_folder) noexcept;
// Removes the files in a folder, and in folders of attempts in it, that are recordings of ranks of any job, or of any
// but one. Never throws.
void remove_recordings(const std::string& folder, const std::string& but_of_job = {}) noexcept;

}  // namespace lockstep::internal
