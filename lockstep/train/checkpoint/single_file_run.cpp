#include "lockstep/train/checkpoint/single_file_run.h"

#include <climits>
#include <cstdint>
#include <string>

#include "lockstep/base/checked.h"
#include "lockstep/base/format.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/state_parts.h"
#include "lockstep/train/checkpoint/together.h"

namespace lockstep::internal {
namespace {

constexpr const char* kLossSoFar = "loss_so_far";  // a tensor: the sum of the losses, and the number of samples

// What sets have, and the first files had not.
void complete(Checkpoint& checkpoint, const std::string& file) {
  Metadata& metadata = checkpoint.metadata;
  metadata.insert({{"shards", "0"}, {"shards_seed", "0"}, {"threads", "0"}, {"arithmetic", ""}, {"ranks", "0"}});
  metadata.insert({"shards_step", metadata["step"]});
  const auto sums = checkpoint.tensors.find(kLossSoFar);
  if (sums == checkpoint.tensors.end() || sums->second.numel() != 2 || sums->second.scalar_type() != at::kDouble) {
    refuse_run(fmt::format("{} has no valid '{}', two numbers that every TrainingRun stores", file, kLossSoFar));
  }
  const auto* const numbers = sums->second.const_data_ptr<double>();
  metadata[kLossSum] = fmt::format("{}", numbers[0]);
  metadata[kSamples] = fmt::format("{:.0f}", numbers[1]);
}

void require_parts_of_files(const State& state, const std::string& file) {
  const char* const missing = state.sampler.load  ? "sampler"
                              : state.loader.load ? "loader"
                              : state.scaler.load ? "scaler"
                              : state.hook.load   ? "hook"
                              : state.user.load   ? "user values"
                                                  : nullptr;
  if (missing == nullptr) return;
  refuse_run(
      fmt::format("{} has no {}, as it is a single file of an earlier version; leave it out of the State for this "
                  "resume",
                  file, missing));
}

}  // namespace

int load_single_file(const std::filesystem::path& file, const State& state, const ProcessGroup& group,
                     const std::function<void(const Metadata& metadata)>& accept) {
  const std::string name = file.string();
  LoadSteps steps;
  int ranks = 0;
  act_together(group, "run to resume", [&] {
    require_parts_of_files(state, name);
    Checkpoint checkpoint = load_checkpoint(file);
    complete(checkpoint, name);
    accept(checkpoint.metadata);
    const Origin origin(name);
    const auto stored = checked_decimal(checkpoint.metadata.at("ranks"), "ranks", origin);
    ranks = static_cast<int>(checked_between(stored, std::int64_t{0}, std::int64_t{INT_MAX}, "ranks", origin));
    steps = checked_load(checkpoint, "null", state, group.rank(), group.size(), [] {});
  });
  act_together(group, "resumed run", steps.load_tensors);
  return ranks;
}

}  // namespace lockstep::internal
