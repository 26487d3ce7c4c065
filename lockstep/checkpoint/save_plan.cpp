#include "lockstep/checkpoint/save_plan.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/machine.h"
#include "lockstep/checkpoint/normal_mode.h"
#include "lockstep/checkpoint/resumption.h"
#include "lockstep/checkpoint/save_agreement.h"
#include "lockstep/checkpoint/shard_plan.h"
#include "lockstep/checkpoint/state_parts.h"
#include "lockstep/checkpoint/tensor_types.h"
#include "lockstep/checkpoint/together.h"

namespace lockstep::internal {
namespace {

using Json = nlohmann::json;

// What a rank tells the others of a tensor: [name, type, shape].
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

// Where common tensors differ between ranks, named.
void require_same_tensors(const std::vector<Json>& told) {
  for (std::size_t rank = 1; rank < told.size(); ++rank) {
    const Json &mine = told[0].at("common"), &theirs = told[rank].at("common");
    if (mine == theirs) continue;
    std::size_t at = 0;
    while (at < mine.size() && at < theirs.size() && mine[at] == theirs[at]) ++at;
    const auto shown = [at](const Json& list) { return at < list.size() ? list[at].dump() : std::string("nothing"); };
    refuse_run(fmt::format("the states that are saved differ: where rank 0 has {}, rank {} has {}", shown(mine), rank,
                           shown(theirs)));
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
    log_warning(fmt::format("the checkpoint of step {} is saved without the metrics that are not finite: {}",
                            state.step, others));
  }
  return metrics;
}

DigestKind digests_of(const SaveOptions& options) { return options.sign ? DigestKind::sha_256 : options.digest; }

SaveJob plan_of(const std::filesystem::path& directory, const State& state, const SaveOptions& options, OwnState& own,
                const std::vector<Json>& told, int rank) {
  const StateParts& parts = own.parts;
  const int size = static_cast<int>(told.size());
  require_same_tensors(told);
  std::vector<Listed> listed;
  append_listed(told[0].at("common"), -1, 0, listed);
  for (int owner = 0; owner < size; ++owner) {
    append_listed(told[static_cast<std::size_t>(owner)].at("own"), owner, owner, listed);
  }
  std::vector<Shardable> sizes;
  for (const Listed& each : listed) {
    sizes.push_back({.row_bytes = each.tensor.row_bytes(), .rows = each.tensor.rows(), .owner = each.owner});
  }
  SaveJob job{
      .directory = directory, .retention = options.retention, .key = std::move(own.key), .parts = {}, .manifest = {}};
  Manifest& manifest = job.manifest;
  manifest.step = static_cast<std::uint64_t>(state.step);
  manifest.world_size = size;
  manifest.metadata = parts.metadata;
  manifest.metrics = finite_metrics(state, rank);
  manifest.digest = digests_of(options);
  manifest.user = parts.user;
  manifest.written = {{"torch", TORCH_VERSION}, {"threads", std::to_string(at::get_num_threads())}};
  for (const Assignment& each : plan_shards(sizes, nodes_of(told))) {
    const Listed& of = listed[each.tensor];
    SetTensor& tensor = manifest.tensors.emplace(of.name, of.tensor).first->second;
    tensor.pieces.push_back(
        {.file = static_cast<std::size_t>(each.rank), .first_row = each.first_row, .end_row = each.end_row});
    if (each.rank != rank) continue;
    const auto& source = of.owner < 0 ? parts.common : parts.own;
    const at::Tensor& whole = source.at(of.name);
    job.parts.push_back({.name = piece_name(of.name, tensor, tensor.pieces.back()),
                         .tensor = rows_of(whole, each),
                         .is_stepped = parts.stepped.contains(of.name),
                         .version = version_of(whole)});
  }
  return job;
}

Json description_of(const StateParts& parts) {
  return {{"node", boot_id() + host_name()}, {"common", description(parts.common)}, {"own", description(parts.own)}};
}

OwnState own_state(const std::filesystem::path& directory, const State& state, const SaveOptions& options, int rank,
                   int size) {
  if (state.step < 0) refuse_run(fmt::format("the step of a checkpoint is {}; it counts from 0", state.step));
  if (directory.empty()) refuse_run("the directory of a checkpoint has no name");
  check(options.retention);
  OwnState own{.parts = take_apart(state, rank, size), .told = {}, .key = {}};
  if (options.sign && rank == 0) own.key = SigningKey::of_this_user();
  own.told = description_of(own.parts);
  return own;
}

}  // namespace

SaveJob plan_save(const std::filesystem::path& directory, const State& state, const SaveOptions& options,
                  const ProcessGroup& group) {
  const NormalMode normal_mode;
  require_same_facts(group, "saves", facts_of_save(directory, state, options));
  if (const DdpBase* ddp = state.model.ddp()) ddp->compare_parameters(group);
  OwnState own;
  const std::vector<std::string> texts = gather_together(group, "state that is saved", [&] {
    own = own_state(directory, state, options, group.rank(), group.size());
    return own.told.dump();
  });
  SaveJob job;
  act_together(group, "plan of a checkpoint", [&] {
    try {
      std::vector<Json> told;
      for (const std::string& text : texts) told.push_back(Json::parse(text));
      job = plan_of(directory, state, options, own, told, group.rank());
    } catch (const Json::exception& error) {
      throw Error(ErrorKind::corrupt_data, std::string("what ranks tell of the state that is saved: ") + error.what());
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
