#include "lockstep/checkpoint/save.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/resumption.h"
#include "lockstep/checkpoint/set_directory.h"
#include "lockstep/checkpoint/set_loading.h"
#include "lockstep/checkpoint/set_reader.h"
#include "lockstep/checkpoint/set_writing.h"
#include "lockstep/checkpoint/signature_check.h"
#include "lockstep/checkpoint/state_parts.h"
#include "lockstep/group/object_codecs.h"

namespace lockstep {

using namespace internal;

namespace {

// Newest first; the directory itself, if it is a set.
std::vector<std::filesystem::path> candidates_in(const std::filesystem::path& directory) {
  std::error_code error;
  if (std::filesystem::exists(directory / kManifestName, error)) return {directory};
  if (!std::filesystem::exists(directory, error)) return {};
  std::vector<std::filesystem::path> paths;
  for (const SetPlace& each : list_sets(directory)) paths.push_back(each.path);
  return paths;
}

SetReader reader_with(const std::filesystem::path& path, ByteView manifest) {
  const std::string name = (path / kManifestName).string();
  return {path, parse_manifest(manifest, Origin(name))};
}

SignatureCheck signature_check(const LoadOptions& options) {
  return SignatureCheck(options.require_signature ? SignatureCheck::Need::required : SignatureCheck::Need::none);
}

// A set whose manifest is whole and whose files are there.
struct Found {
  std::filesystem::path path;
  Bytes manifest;
};

std::optional<Found> next_whole(std::vector<std::filesystem::path>& candidates, const SignatureCheck& signature) {
  while (!candidates.empty()) {
    Found found{.path = candidates.front(), .manifest = {}};
    candidates.erase(candidates.begin());
    try {
      found.manifest = SetReader::read_manifest(found.path);
      signature.check(found.manifest, found.path / kManifestName);
      reader_with(found.path, found.manifest).check_files();
      return found;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::unauthorized) throw;  // going back to an older one would hide it
      log_warning(fmt::format("the checkpoint {} is passed over: {}", found.path.string(), error.what()));
    }
  }
  return std::nullopt;
}

Loaded loaded_from(const SetReader& set) {
  const Manifest& manifest = set.manifest();
  const std::string where = set.path().string();
  const Origin origin(where);
  const auto epoch = manifest.metadata.find("epoch");
  return {.path = set.path(),
          .step = static_cast<std::int64_t>(manifest.step),
          .epoch = epoch == manifest.metadata.end() ? 0 : checked_decimal(epoch->second, "epoch", origin),
          .world_size = manifest.world_size,
          .metrics = manifest.metrics};
}

[[noreturn]] void refuse_none(const std::filesystem::path& directory, bool had_some) {
  const std::string where = directory.string();
  if (had_some) throw Error(ErrorKind::corrupt_data, fmt::format("no checkpoint in {} is whole", where));
  throw Error(ErrorKind::invalid_argument, fmt::format("there is no checkpoint in {}; save one first, or name the "
                                                       "directory that has one",
                                                       where));
}

// Checks that a set fits the state; what it returns then changes the state. The set must still be there.
std::function<void()> fit(SetReader& set, const State& state, int rank, int size) {
  const int stored_ranks = set.manifest().world_size;
  const auto wanted = [&](std::string_view tensor) { return is_wanted(tensor, state, rank, stored_ranks); };
  const SetContent content = read_content(set, wanted, targets_in(state));
  return checked_load(content.checkpoint, set.manifest().user, state, rank, size,
                      [&set, own = content.own] { fill(set, own); });
}

template <class Action>
std::optional<Error> error_in(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {  // of the program's own objects
    return Error(ErrorKind::invalid_argument, error.what());
  }
  return std::nullopt;
}

// Whether any rank has found damage; then another set is tried. Other errors are thrown on all ranks.
bool any_damaged(const ProcessGroup& group, const std::optional<Error>& mine) {
  const bool is_damage = mine && mine->kind() == ErrorKind::corrupt_data;
  fail_together(group, is_damage ? std::nullopt : mine, "checkpoint that is loaded");
  const auto damage = all_gather_object(group, std::string(is_damage ? mine->what() : ""), {.name = "damage"});
  for (const std::string& why : damage) {
    if (!why.empty() && group.rank() == 0) log_warning("a checkpoint is passed over: " + why);
  }
  return std::ranges::any_of(damage, [](const std::string& why) { return !why.empty(); });
}

std::optional<Loaded> load_newest(const std::filesystem::path& directory, const State& state, const ProcessGroup& group,
                                  bool must_be_there, const LoadOptions& options) {
  std::vector<std::filesystem::path> candidates;  // on rank 0
  const auto list = [&] {
    if (group.rank() == 0) candidates = candidates_in(directory);
  };
  fail_together(group, error_in(list), "checkpoint to load");
  const bool had_some = !candidates.empty();
  std::optional<Reader> reader;
  const SignatureCheck signature = signature_check(options);
  for (;;) {
    std::pair<std::string, std::string> chosen;
    const auto choose = [&] {
      if (group.rank() != 0) return;
      if (const auto found = next_whole(candidates, signature)) chosen = {found->path.string(), found->manifest};
      if (chosen.first.empty()) chosen.second = had_some ? "damaged" : "";
    };
    fail_together(group, error_in(choose), "checkpoint that is chosen");
    chosen = broadcast_object(group, chosen, 0, {.name = "checkpoint to load"});
    if (chosen.first.empty()) {
      if (chosen.second.empty() && !must_be_there) return std::nullopt;
      refuse_none(directory, !chosen.second.empty());
    }
    if (!reader) reader = reader_of(group);
    std::optional<SetReader> set;
    if (any_damaged(group, error_in([&] {
                      set.emplace(reader_with(chosen.first, chosen.second));
                      verify_share(*set, *reader);
                    }))) {
      continue;
    }
    std::function<void()> change;
    if (any_damaged(group, error_in([&] { change = fit(*set, state, group.rank(), group.size()); }))) continue;
    fail_together(group, error_in(change), "checkpoint that is loaded");
    return loaded_from(*set);
  }
}

}  // namespace

std::filesystem::path save(const std::filesystem::path& directory, const State& state, const ProcessGroup& group,
                           const SaveOptions& options) {
  SaveJob job = plan_save(directory, state, options, group);
  return run_save(job, group);
}

std::filesystem::path save(const std::filesystem::path& directory, const State& state, const SaveOptions& options) {
  SaveJob job = plan_save_alone(directory, state, options);
  return run_save_alone(job);
}

Loaded load(const std::filesystem::path& directory, const State& state, const ProcessGroup& group,
            const LoadOptions& options) {
  return *load_newest(directory, state, group, true, options);
}

std::optional<Loaded> load_if_any(const std::filesystem::path& directory, const State& state, const ProcessGroup& group,
                                  const LoadOptions& options) {
  return load_newest(directory, state, group, false, options);
}

Loaded load(const std::filesystem::path& directory, const State& state, const LoadOptions& options) {
  const SignatureCheck signature = signature_check(options);
  std::vector<std::filesystem::path> candidates = candidates_in(directory);
  const bool had_some = !candidates.empty();
  while (const auto found = next_whole(candidates, signature)) {
    try {
      SetReader set = reader_with(found->path, found->manifest);
      verify_share(set, {});
      fit(set, state, 0, 1)();
      return loaded_from(set);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::corrupt_data) throw;
      log_warning(fmt::format("the checkpoint {} is passed over: {}", found->path.string(), error.what()));
    }
  }
  refuse_none(directory, had_some);
}

}  // namespace lockstep
