// The flight recorder of this process. Where it records, its environment says:
//   LOCKSTEP_FLIGHT_FD   a descriptor with memory of the launcher's, which saves it if the job fails
//   LOCKSTEP_FLIGHT=DIR  where there is no launcher: the file DIR/rank_<r>.flight, mapped, which stays
// or else in memory of its own, for error texts only. There is one a process, as there is one log: its last operations
// are wanted in one place, whoever issued them. Any thread may call; a recording that cannot be made is a warning.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/observe/flight_recorder.h"

namespace lockstep {

inline constexpr const char* kFlightFdVariable = "LOCKSTEP_FLIGHT_FD";
inline constexpr const char* kFlightDirectoryVariable = "LOCKSTEP_FLIGHT";

// "rank_3.flight"
std::string flight_file_name(int rank);
bool is_flight_file_name(std::string_view name);
// Makes a directory (mode 0700) unless it is there. Error{internal} with the path.
void make_flight_directory(const std::string& path);

// The first call opens it, for the rank that it names; later ones return the same.
FlightRecorder& process_recorder(const FlightIdentity& identity = {});

// The hash by which records and other ranks know a name; 0 for no name. What it stands for is kept.
std::uint64_t note_name(std::string_view name);
// What has been noted: see FlightNames::text_of().
std::string noted_name(std::uint64_t name);

}  // namespace lockstep
