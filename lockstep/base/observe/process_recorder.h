// The flight recorder of this process. The environment says where it records:
//   LOCKSTEP_FLIGHT_FD   a descriptor with the launcher's memory, which it saves if the job fails
//   LOCKSTEP_FLIGHT=DIR  without a launcher: the file DIR/rank_<r>.flight, mapped, which remains
// Otherwise in private memory, for error texts only. There is one recorder per process, so that the last operations
// of all groups are in one place. With a launcher, it also gets the stacks of this process: see stack_recorder.h. Any
// thread may call; a recording that cannot be made is a warning.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/observe/flight_recorder.h"

namespace lockstep::internal {

inline constexpr const char* kFlightFdVariable = "LOCKSTEP_FLIGHT_FD";
inline constexpr const char* kFlightDirectoryVariable = "LOCKSTEP_FLIGHT";

// "rank_3.flight"
std::string flight_file_name(int rank);
bool is_flight_file_name(std::string_view name);
// Makes a directory (mode 0700), and those above it, unless it exists. Error{internal} with the path.
void make_flight_directory(const std::string& path);

// The first call opens it, for the given rank; later calls return the same.
FlightRecorder& process_recorder(const FlightIdentity& identity = {});
// Whether a launcher shares this process's recording. Without one, nobody sees what is counted there.
bool is_watched();

// The hash of a name, for records and other ranks; 0 for no name. The recorder keeps the text.
std::uint64_t note_name(std::string_view name);
// The text that was noted: see FlightNames::text_of().
std::string noted_name(std::uint64_t name);

}  // namespace lockstep::internal
