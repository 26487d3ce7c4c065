// The page of `lockstep report`: runs -> one HTML file that needs nothing else. It has no script and loads nothing; its
// policy forbids both. Sections without data are left out, with a line that says so. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/report/run_record.h"

namespace lockstep::tools {

// `made`: when and by what, for the last line. Runs have different names.
std::string report_page(const std::vector<RunRecord>& runs, const std::string& made);

// The sections, in their order.
std::string overview_section(const std::vector<RunRecord>& runs);
std::string epochs_section(const std::vector<RunRecord>& runs);
std::string steps_section(const std::vector<RunRecord>& runs);
std::string failures_section(const std::vector<RunRecord>& runs);
std::string checkpoints_section(const std::vector<RunRecord>& runs);
std::string environment_section(const std::vector<RunRecord>& runs);

// "Left out for a, b: <why>", or "Left out: <why>" if there is no other run. Nothing without names.
std::string left_out(const std::vector<RunRecord>& runs, const std::vector<std::string>& names, std::string_view why);
// A heading with the run's name, if there are several.
std::string run_heading(const std::vector<RunRecord>& runs, const RunRecord& run);

std::string_view page_style();

}  // namespace lockstep::tools
