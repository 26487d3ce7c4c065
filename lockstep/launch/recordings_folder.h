// Where the flight recordings of jobs are kept, and for how long: one folder per job among the user's state files; old
// ones are removed. Removes nothing but flight recordings of this user, and their empty folders.
#pragma once

#include <string>

namespace lockstep {

inline constexpr int kKeptJobs = 20;
inline constexpr int kKeptDays = 7;

// $XDG_STATE_HOME/lockstep/flight, or that of ~/.local/state; empty if this user has no such folder.
std::string state_folder();
// Makes the folder for a job in `parent` and the folders above it (mode 0700), and returns its path. If `parent` is
// empty or cannot be made, a folder in $TMPDIR or /tmp. Throws Error{internal}.
std::string make_job_folder(const std::string& parent, const std::string& job_id);
// Removes recordings of jobs older than kKeptDays, and of all but the newest kKeptJobs. Never throws.
void prune_job_folders(const std::string& parent) noexcept;
// Removes the files in a folder that are recordings of ranks of any job. Never throws.
void remove_recordings(const std::string& folder) noexcept;

}  // namespace lockstep
