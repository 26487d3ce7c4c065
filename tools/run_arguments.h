// The command line of `lockstep run`, which is torchrun's and more: words -> RunOptions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/run_options.h"

namespace lockstep::tools {

// Reads the words after "lockstep", of which the first is "run", with what PET_ variables and the file of --config
// say. Nothing if everything is said already: the help, or a usage error; then `exit_code` is set.
std::optional<RunOptions> read_run(const std::vector<std::string>& words, int& exit_code);

// torchrun's: the prefix of the lines of ranks.
inline constexpr const char* kPrefixTemplateVariable = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";

// Of all options.
std::string help_of_run();

// For the help of the whole program.
inline constexpr const char* kRunSummary = "Start the ranks of a job, watch them, and restart them";
inline constexpr const char* kRunExamples =
    "Examples:\n"
    "  lockstep run --nproc-per-node 4 ./train --epochs 10\n"
    "  lockstep run --nproc-per-node auto --log-dir logs -- ./train --epochs 10\n"
    "  lockstep run --nproc-per-node 2 --max-restarts 3 train.py           a Python script\n"
    "  lockstep run --nnodes 2 --rdzv-endpoint h1:29400 --nproc-per-node 4 ./train    on each of two hosts\n"
    "  lockstep run --nnodes 1:4 --rdzv-endpoint h1:29400 --max-restarts 3 ./train    the number of hosts may change\n";

}  // namespace lockstep::tools
