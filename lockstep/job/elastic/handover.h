// What agents hand on of a job whose first host has left: in MeetAnew to the remaining ones, in Hello to the next.
#pragma once

#include <string>

namespace lockstep::internal {

// What the others know of a job whose first host has left, for the next one.
struct Handover {
  std::string job_id = {};  // empty: nothing
  int generation = -1;
  int restarts = 0;
  int hosts = 0;  // that were told to meet anew
};

}  // namespace lockstep::internal
