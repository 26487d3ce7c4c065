#include "lockstep/train/checkpoint/save_plan.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/machine.h"
#include "lockstep/train/checkpoint/normal_mode.h"
#include "lockstep/train/checkpoint/save_agreement.h"
#include "lockstep/train/checkpoint/shard_plan.h"
#include "lockstep/train/checkpoint/state_parts.h"
#include "lockstep/train/checkpoint/tensor_types.h"
#include "lockstep/train/checkpoint/together.h"

namespace lockstep::internal {
namespace {

using Json = nlohmann::json;

// The description of a tensor that ranks exchange: [name, type, shape].
Json description(const std::map<std::string, at::Tensor>& tensors) {
  Json list = Json::array();
  for (const auto& [name, tensor] : tensors) list.push_back({name, stored_type(name, tensor), tensor.sizes().vec()});
  return list;
}

struct Listed {
  std::string name;
  SetTensor tensor;
  int owner;
};

[[noreturn]] void refuse_state(const std::string& why) { throw Error(ErrorKind::invalid_argument, why); }

void append_listed(const Json& description, int owner, int told_by, std::vector<Listed>& out) {
  try {
    for (const Json& each : description) {
      out.push_back(
          {.name = each.at(0).get<std::string>(),
           .tensor = {.dtype = each.at(1).get<std::string>(), .shape = each.at(2).get<std::vector<std::int64_t>>()},
           .owner = owner});
    }
  } catch (const Json::exception& error) {
    throw_corrupt({"list of tensors", told_by}, error.what());
  }
}

// Where common tensors or metadata differ between ranks, named.
void require_same_lists(const std::vector<Json>& told, const char* list) {
  for (std::size_t rank = 1; rank < told.size(); ++rank) {
    const Json &mine = told[0].at(list), &theirs = told[rank].at(list);
    if (mine == theirs) continue;
    std::size_t at = 0;
    while (at < mine.size() && at < theirs.size() && mine[at] == theirs[at]) ++at;
    const auto shown = [at](const Json& of) { return at < of.size() ? of[at].dump() : std::string("nothing"); };
    refuse_state(fmt::format(
        "ranks save different states: where rank 0 has {}, rank {} has {}; give save() the same State on all ranks",
        shown(mine), rank, shown(theirs)));
  }
}

std::vector<int> nodes_of(const std::vector<Json>& told) {
  std::vector<int> nodes;
  std::map<std::string, int> numbers;
  for (const Json& each : told) {
    nodes.push_back(
        numbers.emplace(each.at("node").get<std::string>(), static_cast<int>(numbers.size())).first->second);
  }
  return nodes;
}

at::Tensor rows_of(const at::Tensor& tensor, const Assignment& rows) {
  return tensor.dim() == 0 ? tensor : tensor.narrow(0, rows.first_row, rows.end_row - rows.first_row);
}

struct OwnState {
  StateParts parts;
  Json told;
  std::optional<SigningKey> key;
};

// JSON has no other numbers, and a metric must not end a training.
std::map<std::string, double> finite_metrics(const State& state, int rank) {
  std::map<std::string, double> metrics;
  std::string others;
  for (const auto& [name, value] : state.metrics) {
    if (std::isfinite(value)) {
      metrics.emplace(name, value);
    } else {
      others += fmt::format("{}{} ({})", others.empty() ? "" : ", ", name, value);
    }
  }
  if (rank == 0 && !others.empty()) {
    log_warning(
        fmt::format("the checkpoint of step {} is saved without metrics that are not finite: {}", state.step, others));
  }
  return metrics;
}

DigestKind digests_of(const SaveOptions& options) { return options.sign ? DigestKind::sha_256 : options.digest; }

// Whether rank 0 alone writes replicated state.
bool is_of_rank_0(const SaveOptions& options, const std::vector<Json>& told) {
  if (told.size() == 1) return false;
  if (options.if_ranks_differ) return *options.if_ranks_differ == IfRanksDiffer::rank_0;
  return std::ranges::any_of(told, [](const Json& each) { return each.at("may_differ").get<bool>(); });
}

// All that is stored, by whom. The same on all ranks.
std::vector<Listed> listed_by(const std::vector<Json>& told, bool is_whole_of_rank_0) {
  if (!is_whole_of_rank_0) {
    require_same_lists(told, "common");
    require_same_lists(told, "metadata");
  }
  std::vector<Listed> listed;
  append_listed(told[0].at("common"), is_whole_of_rank_0 ? 0 : -1, 0, listed);
  for (int owner = 0; owner < static_cast<int>(told.size()); ++owner) {
    append_listed(told[static_cast<std::size_t>(owner)].at("own"), owner, owner, listed);
  }
  return listed;
}

// All pieces, and this rank's part of them.
void add_pieces(SaveJob& job, const std::vector<Listed>& listed, const StateParts& parts, const std::vector<int>& nodes,
                int rank) {
  std::vector<Shardable> sizes;
  for (const Listed& each : listed) {
    sizes.push_back({.row_bytes = each.tensor.row_bytes(), .rows = each.tensor.rows(), .owner = each.owner});
  }
  for (const Assignment& each : plan_shards(sizes, nodes)) {
    const Listed& of = listed[each.tensor];
    SetTensor& tensor = job.manifest.tensors.emplace(of.name, of.tensor).first->second;
    tensor.pieces.push_back(
        {.file = static_cast<std::size_t>(each.rank), .first_row = each.first_row, .end_row = each.end_row});
    const bool is_replicated = of.owner < 0;
    if (each.rank != rank && !is_replicated) continue;
    const auto common = parts.common.find(of.name);
    const at::Tensor& whole = common != parts.common.end() ? common->second : parts.own.at(of.name);
    (each.rank == rank ? job.parts : job.of_others)
        .push_back({.name = piece_name(of.name, tensor, tensor.pieces.back()),
                    .tensor = rows_of(whole, each),
                    .is_stepped = parts.stepped.contains(of.name),
                    .is_replicated = is_replicated,
                    .version = version_of(whole)});
  }
}

SaveJob plan_of(const std::filesystem::path& directory, const State& state, const SaveOptions& options, OwnState& own,
                const std::vector<Json>& told, int rank) {
  const StateParts& parts = own.parts;
  const bool is_whole_of_rank_0 = is_of_rank_0(options, told);
  const std::vector<Listed> listed = listed_by(told, is_whole_of_rank_0);
  SaveJob job{.directory = directory,
              .retention = options.retention,
              .key = std::move(own.key),
              .parts = {},
              .of_others = {},
              .manifest = {}};
  Manifest& manifest = job.manifest;
  manifest.step = static_cast<std::uint64_t>(state.step);
  manifest.world_size = static_cast<int>(told.size());
  manifest.metadata = parts.metadata;
  if (is_whole_of_rank_0) manifest.metadata.insert({"replicas", "rank_0"});
  manifest.metrics = finite_metrics(state, rank);
  manifest.digest = digests_of(options);
  manifest.user = parts.user;
  manifest.written = {{"torch", TORCH_VERSION}, {"threads", std::to_string(at::get_num_threads())}};
  add_pieces(job, listed, parts, nodes_of(told), rank);
  return job;
}

// may_differ: the program has said that ranks need not have the same.
Json description_of(const StateParts& parts, bool may_differ) {
  Json metadata = Json::array();
  for (const auto& [name, value] : parts.metadata) metadata.push_back({name, value});
  return {{"node", boot_id() + host_name()},
          {"common", description(parts.common)},
          {"own", description(parts.own)},
          {"metadata", std::move(metadata)},
          {"may_differ", may_differ}};
}

OwnState own_state(const std::filesystem::path& directory, const State& state, const SaveOptions& options, int rank,
                   int size) {
  if (state.step < 0) refuse_state(fmt::format("the step of a checkpoint is {}; it must not be negative", state.step));
  if (directory.empty()) refuse_state("the path of the checkpoint directory is empty");
  check(options.retention);
  OwnState own{.parts = take_apart(state, rank, size), .told = {}, .key = {}};
  if (options.sign && rank == 0) own.key = SigningKey::of_this_user();
  const DdpBase* const ddp = state.model.ddp();
  own.told = description_of(own.parts, ddp != nullptr && ddp->options().compare_parameters_every == 0);
  return own;
}

}  // namespace

SaveJob plan_save(const std::filesystem::path& directory, const State& state, const SaveOptions& options,
                  const ProcessGroup& group) {
  const NormalMode normal_mode;
  require_same_facts(group, "saves", facts_of_save(directory, state, options));
  DdpBase* const ddp = state.model.ddp();
  if (ddp != nullptr && !ddp->has_buffers_of_rank_0()) ddp->sync_buffers();  // after a join
  OwnState own;
  const std::vector<std::string> texts = gather_together(group, "state to save", [&] {
    own = own_state(directory, state, options, group.rank(), group.size());
    return own.told.dump();
  });
  SaveJob job;
  act_together(group, "plan of a checkpoint", [&] {
    std::vector<Json> told;
    try {
      for (const std::string& text : texts) told.push_back(Json::parse(text));
      job = plan_of(directory, state, options, own, told, group.rank());
    } catch (const Json::exception& error) {
      const std::string whose = told.size() < texts.size() ? fmt::format("rank {}'s", told.size()) : "a rank's";
      throw Error(ErrorKind::corrupt_data, fmt::format("{} description of the state to save is not valid: {}; do all "
                                                       "ranks run the same build?",
                                                       whose, error.what()));
    }
  });
  return job;
}

SaveJob plan_save_alone(const std::filesystem::path& directory, const State& state, const SaveOptions& options) {
  const NormalMode normal_mode;
  OwnState own = own_state(directory, state, options, 0, 1);
  return plan_of(directory, state, options, own, {own.told}, 0);
}

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

}  // namespace lockstep::internal
