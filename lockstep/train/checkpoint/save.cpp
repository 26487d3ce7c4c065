#include "lockstep/train/checkpoint/save.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/train/checkpoint/accepted_load.h"
#include "lockstep/train/checkpoint/normal_mode.h"
#include "lockstep/train/checkpoint/save_agreement.h"
#include "lockstep/train/checkpoint/save_plan.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_loading.h"
#include "lockstep/train/checkpoint/set_reader.h"
#include "lockstep/train/checkpoint/set_search.h"
#include "lockstep/train/checkpoint/set_writing.h"
#include "lockstep/train/checkpoint/signature_check.h"
#include "lockstep/train/checkpoint/state_parts.h"
#include "lockstep/train/checkpoint/together.h"

namespace lockstep {

using namespace internal;

namespace {

SetReader reader_with(const std::filesystem::path& path, ByteView manifest) {
  const std::string name = (path / kManifestName).string();
  return {path, parse_manifest(manifest, Origin(name))};
}

SignatureCheck signature_check(const LoadOptions& options) {
  return SignatureCheck(options.require_signature ? SignatureCheck::Need::required : SignatureCheck::Need::none);
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

enum class Seen { nothing, replaced, damaged };

[[noreturn]] void refuse_none(const std::filesystem::path& directory, Seen seen) {
  const std::string where = directory.string();
  if (seen == Seen::damaged) {
    throw Error(
        ErrorKind::corrupt_data,
        fmt::format("every checkpoint in {} is damaged; restore one from a copy, or start again in another directory",
                    where));
  }
  if (seen == Seen::replaced) {
    throw Error(ErrorKind::corrupt_data, fmt::format("every checkpoint in {} was replaced or removed during the load, "
                                                     "and there is none now; load again once there is one",
                                                     where));
  }
  throw Error(ErrorKind::invalid_argument, fmt::format("there is no checkpoint in {}; save one first, or name the "
                                                       "directory that has one",
                                                       where));
}

// Checks that a set fits the state. The set must still be there when the state is changed.
LoadSteps fit(SetReader& set, const State& state, int rank, int size, const AcceptMetadata& accept) {
  if (accept) accept(set.manifest().metadata);
  const int stored_ranks = set.manifest().world_size;
  const auto wanted = [&](std::string_view tensor) { return is_wanted(tensor, state, rank, stored_ranks); };
  const SetContent content = read_content(set, wanted, targets_in(state));
  return checked_load(content.checkpoint, set.manifest().user, state, rank, size,
                      [&set, own = content.own] { fill(set, own); });
}

// Steps of loading, of all ranks of a group or of one process alone.
class Together {
 public:
  explicit Together(const ProcessGroup* group) : group_(group) {}

  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }
  int size() const { return group_ == nullptr ? 1 : group_->size(); }
  Reader reader() const { return group_ == nullptr ? Reader{} : reader_of(*group_); }
  void require_same(const Facts& facts) const {
    if (group_ != nullptr) require_same_facts(*group_, "loads", facts);
  }
  // Nothing: there is none. Rank 0 chooses.
  std::optional<SetSearch::Found> next(SetSearch& search) const {
    if (group_ == nullptr) return search.next();
    std::optional<SetSearch::Found> found;
    const std::string path = from_rank_0(*group_, "chosen checkpoint", [&] {
      found = search.next();
      return found ? found->path.string() : std::string();
    });
    if (path.empty()) return std::nullopt;
    return SetSearch::Found{.path = path,
                            .manifest = from_rank_0(*group_, "manifest", [&] { return std::move(found->manifest); })};
  }
  Seen seen_by(const SetSearch& search) const {
    const auto tell = [&]() -> std::string {
      if (!search.has_seen_any()) return "";
      return search.has_seen_damaged() ? "damaged" : "replaced";
    };
    const std::string told = group_ == nullptr ? tell() : from_rank_0(*group_, "checkpoints", tell);
    if (told.empty()) return Seen::nothing;
    return told == "damaged" ? Seen::damaged : Seen::replaced;
  }
  void act(const std::function<void()>& action) const {
    if (group_ == nullptr) return action();
    act_together(*group_, "storable state", action);
  }
  // Whether any rank has found damage in this step; then another set is tried. Other errors are thrown on all ranks.
  bool is_damaged(const std::function<void()>& action) const {
    const std::optional<Error> mine = error_in(action);
    const bool is_damage = mine && mine->kind() == ErrorKind::corrupt_data;
    const std::string what = is_damage ? mine->what() : "";
    if (group_ == nullptr) {
      if (mine && !is_damage) throw Error(*mine);
      return is_damage && warn(what);
    }
    const std::vector<std::string> told = gather_together(*group_, "checkpoint to load", [&] {
      if (mine && !is_damage) throw Error(*mine);
      return what;
    });
    const auto first = std::ranges::find_if(told, [](const std::string& why) { return !why.empty(); });
    return first != told.end() && warn(*first);
  }

 private:
  bool warn(const std::string& why) const {
    if (rank() == 0) log_warning("a checkpoint is skipped: " + why);
    return true;
  }

  const ProcessGroup* group_;
};

[[noreturn]] void refuse_partly(const std::filesystem::path& directory) {
  throw Error(
      ErrorKind::internal,
      fmt::format("a checkpoint in {} changed during the load: the state is partly loaded, and there is no other "
                  "checkpoint; load it again, or another one",
                  directory.string()));
}

enum class Need { must_be_there, if_any, if_undamaged };

// The sets that a load takes.
struct Request {
  Need need = Need::must_be_there;
  AcceptMetadata accept = {};
  std::uint64_t least_step = 0;
};

std::optional<Loaded> load_newest(const std::filesystem::path& directory, const State& state, const ProcessGroup* group,
                                  const Request& request, const LoadOptions& options = {}) {
  const NormalMode normal_mode;
  const Together together(group);
  together.require_same(
      facts_of_load(directory, state, options, request.need == Need::if_any ? "load_if_any" : "load"));
  SetSearch search(directory, signature_check(options), request.least_step);  // used by rank 0
  std::optional<Reader> reader;
  bool is_partly_loaded = false;
  while (const auto found = together.next(search)) {
    if (!reader) reader = together.reader();
    std::optional<SetReader> set;
    LoadSteps steps;
    Loaded loaded;
    if (together.is_damaged([&] {
          set.emplace(reader_with(found->path, found->manifest));
          loaded = loaded_from(*set);
          set->open_files();
        }) ||
        together.is_damaged([&] { verify_share(*set, *reader); }) ||
        together.is_damaged([&] { steps = fit(*set, state, together.rank(), together.size(), request.accept); })) {
      continue;
    }
    // Objects of all ranks come before any tensor: an object that throws must not leave its rank with old tensors.
    if (!together.is_damaged(steps.load_objects) && !together.is_damaged(steps.load_tensors)) return loaded;
    is_partly_loaded = true;
  }
  if (is_partly_loaded) refuse_partly(directory);
  if (request.need == Need::if_undamaged) return std::nullopt;
  const Seen seen = together.seen_by(search);
  if (seen == Seen::nothing && request.need == Need::if_any) {
    together.act([&] { require_storable(state); });
    return std::nullopt;
  }
  refuse_none(directory, seen);
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
  return *load_newest(directory, state, &group, {.need = Need::must_be_there}, options);
}

std::optional<Loaded> load_if_any(const std::filesystem::path& directory, const State& state, const ProcessGroup& group,
                                  const LoadOptions& options) {
  return load_newest(directory, state, &group, {.need = Need::if_any}, options);
}

Loaded load(const std::filesystem::path& directory, const State& state, const LoadOptions& options) {
  return *load_newest(directory, state, nullptr, {.need = Need::must_be_there}, options);
}

std::optional<Loaded> internal::load_accepted(const std::filesystem::path& directory, const State& state,
                                              const ProcessGroup& group, const AcceptMetadata& accept,
                                              std::optional<std::uint64_t> least_step) {
  const Need need = least_step ? Need::if_undamaged : Need::must_be_there;
  return load_newest(directory, state, &group, {.need = need, .accept = accept, .least_step = least_step.value_or(0)});
}

}  // namespace lockstep
