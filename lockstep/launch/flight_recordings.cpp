#include "lockstep/launch/flight_recordings.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/launch/recordings_folder.h"
#include "lockstep/observe/process_recorder.h"

namespace lockstep {
namespace {

bool went_wrong(const Outcome& outcome) {
  return std::ranges::any_of(outcome.ranks, [](const RankEnd& end) { return !end.failure.text.empty(); });
}

std::string how_it_ended(const Outcome& outcome, int rank) {
  for (const RankEnd& end : outcome.ranks) {
    if (end.rank != rank) continue;
    const std::string how = end.failure.text.empty() ? describe(end.status) : end.failure.text;
    return end.told_to_stop ? how + ", after the launcher had told it to stop" : how;
  }
  return "";
}

// As a shell reads it.
std::string shell_quoted(const std::string& path) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("/._-+").find(c) != std::string_view::npos;
  };
  if (!path.empty() && std::ranges::all_of(path, plain)) return path;
  std::string text = "'";
  for (const char c : path) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

FlightRecordings::FlightRecordings(const std::string& job_id, int ranks) : job_id_(job_id) {
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      memories_.push_back(FlightMemory::make_shared({.rank = rank, .world_size = ranks, .job_id = job_id}));
    }
  } catch (const Error& error) {
    log_warning(fmt::format("{}; the job runs without a flight recording", error.what()));
    memories_.clear();
  }
}

int FlightRecordings::fd(int rank) const {
  return memories_.empty() ? -1 : memories_[static_cast<std::size_t>(rank)].fd();
}

std::optional<FlightFailure> FlightRecordings::failure(int rank) const {
  return memories_.empty() ? std::nullopt : memories_[static_cast<std::size_t>(rank)].last_failure();
}

std::string FlightRecordings::save(const Outcome& outcome, const std::string& directory) const {
  const bool recorded = std::ranges::any_of(memories_, &FlightMemory::is_signed);
  if (!recorded || (directory.empty() && !went_wrong(outcome))) return "";
  std::string place = directory;
  try {
    if (directory.empty()) {
      const std::string parent = state_folder();
      place = make_job_folder(parent, job_id_);
      prune_job_folders(parent);
    } else {
      make_flight_directory(place);
      remove_recordings(place);  // of another job, perhaps with more ranks
    }
    for (std::size_t rank = 0; rank < memories_.size(); ++rank) {
      const int number = static_cast<int>(rank);
      memories_[rank].save(place + "/" + flight_file_name(number), how_it_ended(outcome, number));
    }
  } catch (const Error& error) {
    return fmt::format("the flight recording is lost: {}", error.what());
  }
  return fmt::format("to see where each rank was: lockstep trace --flight {}", shell_quoted(place));
}

}  // namespace lockstep
