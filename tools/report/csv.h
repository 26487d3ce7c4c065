// Runs as one table for other programs: a row for each epoch, and for each rank of each "steps" line. Pure.
#pragma once

#include <string>
#include <vector>

#include "tools/report/run_record.h"

namespace lockstep::tools {

// RFC 4180, with "\n". Columns: run, kind ("epoch" or "steps"), epoch, step, steps, rank, world_size, data_s ...
// late_s, straggler (1 or 0), and one for each metric of epochs, under its name ("metric:step" if that is taken). What
// does not apply or is not known is empty. Numbers read back to the same bits. A text that a spreadsheet would take for
// a formula has ' in front.
std::string csv_of(const std::vector<RunRecord>& runs);

}  // namespace lockstep::tools
