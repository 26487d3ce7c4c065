// `lockstep checkpoint verify` and `prune`.
#include <algorithm>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/job/inspect/finding.h"
#include "lockstep/train/checkpoint/retention.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/signature_check.h"
#include "tools/checkpoint_command.h"
#include "tools/checkpoint_places.h"
#include "tools/progress.h"
#include "tools/standard_output.h"
#include "tools/tensor_source.h"

namespace lockstep::tools {

using namespace internal;

namespace {

SignatureCheck signature_check(const CheckpointOptions& options) {
  const auto need = options.require_signature ? SignatureCheck::Need::required : SignatureCheck::Need::none;
  return options.token_file.empty() ? SignatureCheck(need)
                                    : SignatureCheck(need, SigningKey::from_file(options.token_file));
}

// The result for one place; "damage" is the reason if it is damaged.
nlohmann::json verified(const CheckpointPlace& place, const SignatureCheck& signature) {
  nlohmann::json result{{"path", place.path.string()}, {"kind", place.kind}};
  try {
    const auto source = open_tensors(place.path, signature);
    Progress progress("verifying " + place.path.filename().string(), source->tensor_bytes());
    source->verify([&](std::uint64_t bytes) { progress.at(bytes); });
    result["bytes"] = source->facts().bytes;
    result["has_digests"] = source->facts().has_digests;
    if (!source->facts().signature.empty()) result["signature"] = source->facts().signature;
  } catch (const Error& error) {
    result["damage"] = error.what();
  }
  return result;
}

std::string verdict_text(const nlohmann::json& result) {
  const std::string path = plain_text(result["path"]);
  if (result.contains("damage")) return fmt::format("{}: {}\n", path, damage_text(result["damage"]));
  return fmt::format(
      "{}: {} ({}{})\n", path,
      result["has_digests"] ? "whole" : "readable; it has no digests, so damage of tensors cannot be detected",
      bytes_text(result["bytes"].get<double>()),
      result.contains("signature") ? ", " + result["signature"].get<std::string>() : "");
}

}  // namespace

int verify_checkpoints(const CheckpointOptions& options) {
  const std::vector<CheckpointPlace> places = checkpoint_places(options.path);
  if (places.empty()) {
    throw Error(ErrorKind::invalid_argument, fmt::format("{}: there are no checkpoints in it", options.path));
  }
  const SignatureCheck signature = signature_check(options);
  nlohmann::json results = nlohmann::json::array();
  bool all_whole = true;
  for (const CheckpointPlace& place : places) {
    results.push_back(verified(place, signature));
    all_whole = all_whole && !results.back().contains("damage");
    if (options.json) continue;
    print(verdict_text(results.back()));
  }
  if (options.json) print_json(results);
  return all_whole ? EXIT_SUCCESS : EXIT_FAILURE;
}

int prune_checkpoints(const CheckpointOptions& options) {
  std::vector<std::filesystem::path> removed = sets_to_prune(options.path, options.rules, {});
  std::ranges::reverse(removed);  // the oldest first
  if (!options.dry_run) {
    for (const std::filesystem::path& each : removed) remove_set(each);
  }
  for (const HiddenSet& each : list_hidden_sets(options.path)) {
    if (each.is_abandoned) removed.push_back(each.path);
  }
  if (!options.dry_run) remove_abandoned_sets(options.path);
  nlohmann::json names = nlohmann::json::array();
  for (const std::filesystem::path& each : removed) {
    names.push_back(each.string());
    if (options.json) continue;
    print(fmt::format("{} {}\n", options.dry_run ? "would remove" : "removed", plain_text(each.string())));
  }
  nlohmann::json kept = nlohmann::json::array();
  for (const SetPlace& each : list_sets(options.path)) {
    if (std::ranges::find(removed, each.path) == removed.end()) kept.push_back(each.path.string());
  }
  if (options.json) {
    print_json({{"removed", names}, {"kept", kept}, {"dry_run", options.dry_run}});
  } else {
    print(fmt::format("{} removed, {} checkpoints kept\n", options.dry_run ? "none" : std::to_string(removed.size()),
                      kept.size()));
  }
  return EXIT_SUCCESS;
}

}  // namespace lockstep::tools
