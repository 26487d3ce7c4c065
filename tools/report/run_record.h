// RunRecord: the recorded data of a training run. Values; no I/O.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::tools {

// Of a number that is missing, or was not finite when the run wrote it.
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

struct EpochLine {
  std::int64_t epoch = 0;  // counted from 0
  std::optional<std::int64_t> step = {};
  std::optional<std::int64_t> world_size = {};
  std::vector<std::pair<std::string, double>> metrics = {};  // by name
};

// The parts of a step's time, as far as the run has measured them. `compute` is forward and backward where they cannot
// be separated. The last three are not parts: the whole step, and times outside its sum.
enum class StepPart : std::uint8_t {
  data,
  forward,
  backward,
  compute,
  optimizer,
  waiting,
  communicating,
  step,
  hidden,
  late
};
inline constexpr std::size_t kStepParts = 7;
inline constexpr std::array<std::string_view, 10> kStepFields = {
    "data_s",    "forward_s",       "backward_s", "compute_s", "optimizer_s",
    "waiting_s", "communicating_s", "step_s",     "hidden_s",  "late_s"};

using StepSeconds = std::array<double, kStepFields.size()>;  // kUnknown where nothing is known
constexpr StepSeconds no_seconds() {
  StepSeconds seconds{};
  for (double& each : seconds) each = kUnknown;
  return seconds;
}

struct RankTimes {
  int rank = 0;
  StepSeconds seconds = no_seconds();

  double of(StepPart part) const { return seconds[static_cast<std::size_t>(part)]; }
};

// Means over the `steps` steps that end with `step`.
struct StepsLine {
  std::int64_t step = 0;
  std::int64_t steps = 1;
  std::optional<std::int64_t> world_size = {};
  std::vector<RankTimes> ranks = {};  // by rank
  std::optional<std::int64_t> straggler = {};
};

struct StartLine {
  std::size_t line = 0;
  std::optional<std::int64_t> step = {};  // after which it resumes
  std::vector<std::string> command = {};
  std::string host = {}, started = {}, threads = {};
  std::vector<std::pair<std::string, std::string>> versions = {};
};

struct RestartLine {
  std::size_t line = 0;
  std::string attempt = {}, reason = {}, at = {};
};

struct CheckpointLine {
  std::int64_t step = 0;
  std::string path = {};
  double seconds = kUnknown;
};

struct DamagedLine {
  std::size_t line = 0;
  std::string what = {};
};

// A checkpoint that is in the run's directory.
struct FolderCheckpoint {
  std::string name = {}, kind = {};
  std::optional<std::uint64_t> step = {};
  double bytes = kUnknown;
  double modified_seconds = kUnknown;  // since 1970
  std::string damage = {};             // empty: it can be read
};

struct RunRecord {
  std::string name = {}, path = {};
  // Each by rising epoch or step.
  std::vector<EpochLine> epochs = {};
  std::vector<StepsLine> steps = {};
  std::vector<CheckpointLine> saves = {};
  std::vector<StartLine> starts = {};
  std::vector<RestartLine> restarts = {};
  std::vector<DamagedLine> damaged = {};  // the first ones
  std::size_t damaged_count = 0;
  std::size_t replaced = 0;  // lines of epochs and steps that the run did again later
  std::vector<FolderCheckpoint> checkpoints = {};
  std::map<std::string, std::string> settings = {};  // from the newest checkpoint
};

}  // namespace lockstep::tools
