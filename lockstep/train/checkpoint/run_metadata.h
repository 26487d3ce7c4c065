// What a TrainingRun adds to the metadata of its checkpoints: its position and its choices. Files of earlier versions
// have the same, under the same names. Pure.
#pragma once

#include <map>
#include <string>

#include "lockstep/train/checkpoint/training_run.h"

namespace lockstep::internal {

using Metadata = std::map<std::string, std::string>;

inline constexpr const char* kChoice = "choice.";  // begins the names of choices
inline constexpr const char* kLossSum = "loss_sum";
inline constexpr const char* kSamples = "samples";

// Error{invalid_argument}: the run cannot begin, be saved or be resumed as it is.
[[noreturn]] void refuse_run(const std::string& why);

// Error{invalid_argument}: checked_position() would refuse it.
void require_storable(const TrainingPosition& position);

// Without step and epoch, which save() stores. position: with sums over all ranks.
Metadata run_metadata(const TrainingPosition& position, const std::map<std::string, std::string>& choices);

// The position, with sums over all ranks. Error{invalid_argument}: the checkpoint has other choices, or is not of a
// TrainingRun. Error{corrupt_data}: invalid numbers.
TrainingPosition checked_position(const Metadata& metadata, const TrainingRunOptions& options);

}  // namespace lockstep::internal
