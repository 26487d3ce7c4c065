#include "lockstep/train/checkpoint/run_metadata.h"

#include <charconv>
#include <climits>
#include <cstdint>
#include <string>
#include <system_error>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr const char* kBatch = "batch";

void require_choices(const Metadata& metadata, const TrainingRunOptions& options) {
  for (const auto& [name, value] : options.choices) {
    const auto stored = metadata.find(kChoice + name);
    const bool is_stored = stored != metadata.end();
    const auto untold = options.untold.find(name);
    if (!is_stored && untold == options.untold.end()) {
      refuse_run(
          fmt::format("the checkpoint in {} does not record its {}, this run has {}; if all such checkpoints have "
                      "the same value, set it in TrainingRunOptions::untold",
                      options.directory.string(), name, value));
    }
    const std::string& then = is_stored ? stored->second : untold->second;
    if (then == value) continue;
    refuse_run(fmt::format("the checkpoint in {} was made with {} {}, this run has {}", options.directory.string(),
                           name, then, value));
  }
}

}  // namespace

void refuse_run(const std::string& why) { throw Error(ErrorKind::invalid_argument, why); }

Metadata run_metadata(const TrainingPosition& position, const std::map<std::string, std::string>& choices) {
  // fmt writes the shortest text that gives the same double again; "nan" and "inf" can be read back too.
  Metadata metadata{{kBatch, std::to_string(position.batch)},
                    {kLossSum, fmt::format("{}", position.loss_sum)},
                    {kSamples, std::to_string(position.samples)}};
  for (const auto& [name, value] : choices) metadata[kChoice + name] = value;
  return metadata;
}

TrainingPosition checked_position(const Metadata& metadata, const TrainingRunOptions& options) {
  const std::string where = options.directory.string();
  const Origin origin(where);
  const auto text = [&](const char* name) -> const std::string& {
    const auto found = metadata.find(name);
    if (found != metadata.end()) return found->second;
    refuse_run(fmt::format("the checkpoint in {} has no '{}', which every TrainingRun stores; load it with load()",
                           where, name));
  };
  const auto number = [&](const char* name, std::int64_t most) {
    return checked_between(checked_decimal(text(name), name, origin), std::int64_t{0}, most, name, origin);
  };
  constexpr std::int64_t kMostSamples = 1'000'000'000'000'000;
  TrainingPosition position{.step = number("step", INT64_MAX),
                            .epoch = static_cast<int>(number("epoch", INT_MAX)),
                            .batch = number(kBatch, INT64_MAX),
                            .samples = number(kSamples, kMostSamples)};
  const std::string& sum = text(kLossSum);
  const auto [stop, error] = std::from_chars(sum.data(), sum.data() + sum.size(), position.loss_sum);
  if (error != std::errc() || stop != sum.data() + sum.size()) throw_corrupt(origin, "invalid loss_sum: " + sum);
  require_choices(metadata, options);
  return position;
}

}  // namespace lockstep::internal
