// `lockstep checkpoint ls` and `show`.
#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/job/inspect/finding.h"
#include "lockstep/job/inspect/job_table.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "tools/checkpoint_command.h"
#include "tools/checkpoint_places.h"
#include "tools/standard_output.h"
#include "tools/tensor_source.h"

namespace lockstep::tools {

using namespace internal;

namespace {

using nlohmann::json;

constexpr const char* kListLine = "{:<34} {:>10} {:<5} {:>10} {:>8} {:>6} {:>8}  {}\n";

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <class Number>
std::string text_or_dash(const std::optional<Number>& number) {
  return number ? std::to_string(*number) : "-";
}

json json_of(const SourceFacts& facts) {
  json object{{"kind", facts.kind},         {"bytes", facts.bytes},
              {"files", facts.files},       {"modified", facts.modified_seconds},
              {"written", facts.written},   {"has_digests", facts.has_digests},
              {"metadata", facts.metadata}, {"metrics", facts.metrics}};
  if (facts.step) object["step"] = *facts.step;
  if (facts.world_size) object["world_size"] = *facts.world_size;
  object["user"] = json::parse(facts.user);
  return object;
}

// One line of the list, and the same for programs.
std::string listed(const CheckpointPlace& place, json& documents) {
  const std::string name = plain_text(place.path.filename().string());
  try {
    const auto source = open_tensors(place.path);
    const SourceFacts& facts = source->facts();
    documents.push_back(json_of(facts));
    documents.back()["path"] = place.path.string();
    documents.back()["tensors"] = source->tensors().size();
    return fmt::format(kListLine, name, text_or_dash(facts.step), facts.kind,
                       bytes_text(static_cast<double>(facts.bytes)),
                       age_text(std::max(0.0, now_seconds() - facts.modified_seconds)), text_or_dash(facts.world_size),
                       source->tensors().size(), metrics_text(facts.metrics));
  } catch (const Error& error) {
    documents.push_back({{"path", place.path.string()}, {"kind", place.kind}, {"damage", error.what()}});
    if (place.step) documents.back()["step"] = *place.step;
    return fmt::format(kListLine, name, text_or_dash(place.step), place.kind, "-", "-", "-", "-",
                       damage_text(error.what()));
  }
}

}  // namespace

int list_checkpoints(const CheckpointOptions& options) {
  const std::vector<CheckpointPlace> places = checkpoint_places(options.path);
  json documents = json::array();
  std::string text = fmt::format(kListLine, "NAME", "STEP", "KIND", "SIZE", "AGE", "RANKS", "TENSORS", "METRICS");
  for (const CheckpointPlace& place : places) text += listed(place, documents);
  const std::vector<HiddenSet> hidden = list_hidden_sets(options.path);
  if (options.json) {
    json unpublished = json::array();
    for (const HiddenSet& each : hidden) {
      unpublished.push_back({{"path", each.path.string()}, {"is_abandoned", each.is_abandoned}});
    }
    print_json({{"checkpoints", std::move(documents)}, {"unpublished", std::move(unpublished)}});
    return EXIT_SUCCESS;
  }
  if (places.empty()) text = fmt::format("no checkpoints in {}\n", options.path);
  for (const HiddenSet& each : hidden) {
    text += fmt::format("{}: {}\n", plain_text(each.path.filename().string()),
                        each.is_abandoned ? "left by a killed writer; the next save into this directory removes it, or "
                                            "lockstep checkpoint prune"
                                          : "being written");
  }
  print(text);
  return EXIT_SUCCESS;
}

int show_checkpoint(const CheckpointOptions& options) {
  const auto source = open_tensors(options.path);
  const SourceFacts& facts = source->facts();
  if (options.json) {
    json document = json_of(facts);
    document["tensors"] = json::object();
    for (const auto& [name, tensor] : source->tensors()) {
      document["tensors"][name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"bytes", tensor.bytes}};
    }
    document["tensor_bytes"] = source->tensor_bytes();
    print_json(document);
    return EXIT_SUCCESS;
  }
  std::size_t name_width = 0, shape_width = 0;
  for (const auto& [name, tensor] : source->tensors()) {
    name_width = std::max(name_width, name.size());
    shape_width = std::max(shape_width, shape_text(tensor).size());
  }
  std::string text;
  for (const auto& [name, tensor] : source->tensors()) {
    text += fmt::format("{:<{}}  {:<{}}  {:>14} bytes\n", plain_text(name), name_width, shape_text(tensor), shape_width,
                        tensor.bytes);
  }
  text += fmt::format("{} tensors, {} bytes ({})\n", source->tensors().size(), source->tensor_bytes(),
                      bytes_text(static_cast<double>(source->tensor_bytes())));
  text += fmt::format("{} of {} files, {} bytes{}\n", facts.kind, facts.files, facts.bytes,
                      facts.has_digests ? "" : ", without digests: damage cannot be detected");
  if (facts.step) text += fmt::format("step: {}\n", *facts.step);
  if (facts.world_size) text += fmt::format("ranks: {}\n", *facts.world_size);
  for (const auto& [name, value] : facts.written)
    text += fmt::format("written, {}: {}\n", plain_text(name), plain_text(value));
  for (const auto& [name, value] : facts.metrics) text += fmt::format("metric {}: {}\n", plain_text(name), value);
  for (const auto& [name, value] : facts.metadata)
    text += fmt::format("metadata {}: {}\n", plain_text(name), plain_text(value));
  if (facts.user != "null") text += fmt::format("user values: {}\n", facts.user);
  print(text);
  return EXIT_SUCCESS;
}

}  // namespace lockstep::tools
