#include "lockstep/checkpoint/save.h"

#include <functional>
#include <utility>
#include <vector>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/resumption.h"
#include "lockstep/checkpoint/save_job.h"
#include "lockstep/checkpoint/set_directory.h"
#include "lockstep/checkpoint/set_loading.h"
#include "lockstep/checkpoint/set_reader.h"
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
      const std::filesystem::path name = found.path / kManifestName;
      signature.check(found.manifest, name);
      SetReader(found.path, parse_manifest(found.manifest, Origin(name.string()))).check_files();
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

// What this rank needs of a set.
struct Content {
  Loaded loaded;
  Checkpoint checkpoint;
  std::string user;
};

Content read_content(const std::filesystem::path& path, ByteView text, const State& state, const Readers& readers,
                     int rank) {
  const std::string name = (path / kManifestName).string();
  SetReader set(path, parse_manifest(text, Origin(name)));
  const int stored_ranks = set.manifest().world_size;
  const auto wanted = [&](std::string_view tensor) { return is_wanted(tensor, state, rank, stored_ranks); };
  return {.loaded = loaded_from(set), .checkpoint = read_set(set, readers, wanted), .user = set.manifest().user};
}

template <class Action>
std::optional<Error> error_in(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// Whether any rank has found damage; then another set is tried. Other errors are thrown on all ranks.
bool any_damaged(const ProcessGroup& group, const std::optional<Error>& mine) {
  const bool is_damage = mine && mine->kind() == ErrorKind::corrupt_data;
  const std::string text = mine ? mine->what() : "";
  const auto all = all_gather_object(group, std::pair(is_damage ? 1 : 0, text), {.name = "checkpoint that is loaded"});
  if (mine && !is_damage) throw *mine;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].first == 0 && !all[rank].second.empty()) {
      refuse_run(fmt::format("rank {}: {}", rank, all[rank].second));
    }
  }
  bool is_any = false;
  for (const auto& [damaged, why] : all) {
    if (damaged == 0) continue;
    is_any = true;
    if (group.rank() == 0) log_warning("a checkpoint is passed over: " + why);
  }
  return is_any;
}

// Of rank 0, the only one that looks at signatures.
void throw_together(const ProcessGroup& group, const std::optional<Error>& unauthorized) {
  std::string text = unauthorized ? unauthorized->what() : "";
  text = broadcast_object(group, text, 0, {.name = "signature of a checkpoint"});
  if (unauthorized) throw *unauthorized;
  if (!text.empty()) throw Error(ErrorKind::unauthorized, "rank 0: " + text);
}

std::optional<Loaded> load_newest(const std::filesystem::path& directory, const State& state, const ProcessGroup& group,
                                  bool must_be_there, const LoadOptions& options) {
  std::vector<std::filesystem::path> candidates;  // on rank 0
  const auto list = [&] {
    if (group.rank() == 0) candidates = candidates_in(directory);
  };
  fail_together(group, error_in(list), "checkpoint to load");
  const bool had_some = !candidates.empty();
  std::optional<Readers> readers;
  const SignatureCheck signature = signature_check(options);
  for (;;) {
    std::pair<std::string, std::string> chosen;
    const auto choose = [&] {
      if (group.rank() != 0) return;
      if (const auto found = next_whole(candidates, signature)) chosen = {found->path.string(), found->manifest};
      if (chosen.first.empty()) chosen.second = had_some ? "damaged" : "";
    };
    throw_together(group, error_in(choose));
    chosen = broadcast_object(group, chosen, 0, {.name = "checkpoint to load"});
    if (chosen.first.empty()) {
      if (chosen.second.empty() && !must_be_there) return std::nullopt;
      refuse_none(directory, !chosen.second.empty());
    }
    if (!readers) readers = readers_of(group);
    Content content;
    if (any_damaged(group, error_in([&] {
                      content = read_content(chosen.first, chosen.second, state, *readers, group.rank());
                    }))) {
      continue;
    }
    // Only now: where one rank has read damage, others have it too.
    std::function<void()> apply;
    if (any_damaged(group, error_in([&] {
                      apply = checked_load(content.checkpoint, content.user, state, group.rank(), group.size());
                    }))) {
      continue;
    }
    apply();
    return content.loaded;
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
      const Content content = read_content(found->path, found->manifest, state, {}, 0);
      checked_load(content.checkpoint, content.user, state, 0, 1)();
      return content.loaded;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::corrupt_data) throw;
      log_warning(fmt::format("the checkpoint {} is passed over: {}", found->path.string(), error.what()));
    }
  }
  refuse_none(directory, had_some);
}

}  // namespace lockstep
