// TensorBoard's event files: scalars -> records, each with its length and masked CRC-32C sums, of the protobuf message
// Event. Written by hand, since that is seven fields. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tools/report/run_record.h"

namespace lockstep::tools {

class EventFile {
 public:
  EventFile();  // with the record that names the version of the format

  // `wall_seconds`: since 1970. A value that is not finite, or beyond what a float holds, is left out.
  void add_scalar(std::string_view tag, std::int64_t step, double value, double wall_seconds);
  const std::string& bytes() const { return bytes_; }

 private:
  void add_record(std::string_view event);

  std::string bytes_;
};

// The metrics of epochs under their names, at the step of the epoch's line, or at the epoch where it has none; and the
// seconds of a step as "step_s/rank 0" and so on. Lines have no time of their own: it is that of the first start.
std::string event_file_of(const RunRecord& run);

// Since 1970, of "2026-11-25T18:40:21Z", also with a fraction and an offset; kUnknown if it is something else.
double seconds_of_iso_time(const std::string& text);

}  // namespace lockstep::tools
