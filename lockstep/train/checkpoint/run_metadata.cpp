#include "lockstep/train/checkpoint/run_metadata.h"

#include <charconv>
#include <climits>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr const char* kBatch = "batch";
constexpr std::int64_t kMostSamples = 1'000'000'000'000'000;

void require_choices(const Metadata& metadata, const TrainingRunOptions& options) {
  for (const auto& [name, value] : options.choices) {
    const auto stored = metadata.find(kChoice + name);
    const bool is_stored = stored != metadata.end();
    const auto untold = options.untold.find(name);
    if (!is_stored && untold == options.untold.end()) {
      refuse_run(fmt::format(
          "the checkpoint in {} does not record the choice '{}', which is '{}' in this run; if its value is "
          "known, set TrainingRunOptions::untold[\"{}\"]",
          options.directory.string(), name, value, name));
    }
    const std::string& then = is_stored ? stored->second : untold->second;
    if (then == value) continue;
    refuse_run(
        fmt::format("the checkpoint in {} was made with {} = {}, and this run has {}; use the same value, or another "
                    "directory",
                    options.directory.string(), name, then, value));
  }
  const std::string_view prefix = kChoice;
  for (const auto& [name, value] : metadata) {
    if (!name.starts_with(prefix) || options.choices.contains(name.substr(prefix.size()))) continue;
    const std::string choice = name.substr(prefix.size());
    refuse_run(
        fmt::format("the checkpoint in {} has the choice '{}' = '{}', which this run does not give; add it to "
                    "TrainingRunOptions::choices, or use another directory",
                    options.directory.string(), choice, value));
  }
}

}  // namespace

void refuse_run(const std::string& why) { throw Error(ErrorKind::invalid_argument, why); }

void require_storable(const TrainingPosition& position) {
  const auto require = [](const char* name, std::int64_t value, std::int64_t most) {
    if (value >= 0 && value <= most) return;
    refuse_run(
        fmt::format("TrainingRun::position.{} is {}, which no checkpoint can have; set it to 0 or more, at most "
                    "{} over all ranks",
                    name, value, most));
  };
  require("step", position.step, INT64_MAX);
  require("epoch", position.epoch, INT_MAX);
  require("batch", position.batch, INT64_MAX);
  require("samples", position.samples, kMostSamples);
}

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
