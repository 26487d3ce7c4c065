// The exit codes of `lockstep run` and of its agents, where the job's ranks do not choose them. Listed in
// docs/LAUNCHING.md.
#pragma once

namespace lockstep::internal {

inline constexpr int kUsageExitCode = 2;
inline constexpr int kRendezvousExitCode = 3;  // the store cannot be hosted, hosts do not meet, or the first is lost
inline constexpr int kHangExitCode = 4;
inline constexpr int kLeftExitCode = 5;  // of an agent whose host has left a job that continues
inline constexpr const char* kLeftText = "this host has left the job, which continues";
inline constexpr int kStoppedExitCode = 75;  // EX_TEMPFAIL of sysexits.h: to be tried again later
inline constexpr int kCannotExecute = 126;   // as shells report it
inline constexpr int kNotFound = 127;

}  // namespace lockstep::internal
