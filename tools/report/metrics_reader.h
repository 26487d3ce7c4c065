// Reads metrics.jsonl, the record that TrainingRun writes: text -> RunRecord. A line without "kind" is an epoch; kinds
// are "steps", "run", "restart" and "checkpoint". Other kinds and fields are ignored.
#pragma once

#include <filesystem>
#include <string_view>

#include "tools/report/run_record.h"

namespace lockstep::tools {

inline constexpr const char* kMetricsName = "metrics.jsonl";

// A damaged line is counted, described, and otherwise ignored. A run that goes back, since it was resumed or restarted,
// replaces its earlier lines of the same and later epochs or steps. Throws only for lack of memory.
RunRecord parse_metrics(std::string_view text);

// Of a run's directory. Blocks for disk I/O. Error{invalid_argument}: there is no such directory, or it has no
// metrics.jsonl, or a far too large one.
RunRecord read_metrics(const std::filesystem::path& directory);

}  // namespace lockstep::tools
