#include "lockstep/train/checkpoint/save_agreement.h"

#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include <typeinfo>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/group/object_codecs.h"
#include "lockstep/comm/group/process_group.h"

namespace lockstep::internal {
namespace {

std::string optimizer_of(const State& state) {
  const torch::optim::Optimizer* const optimizer = state.optimizer.get();
  return optimizer == nullptr ? "none" : c10::demangle(typeid(*optimizer).name());
}

std::string parts_of(const State& state) {
  std::string parts;
  const auto add = [&](bool is_there, const char* name) {
    if (is_there) parts += fmt::format("{}{}", parts.empty() ? "" : " + ", name);
  };
  add(state.model.ddp() != nullptr, "DistributedDataParallel");
  add(state.model.ddp() == nullptr && state.model.module() != nullptr, "module");
  add(state.sampler.save != nullptr, "sampler");
  add(state.loader.save != nullptr, "loader");
  add(state.scaler.save != nullptr, "scaler");
  add(state.hook.save != nullptr, "hook");
  add(state.user.save != nullptr, "user");
  return parts;
}

std::string shown(const std::string& value) { return value.empty() ? "nothing" : value; }

}  // namespace

Facts facts_of(const SaveOptions& options) {
  const auto& if_ranks_differ = options.if_ranks_differ;
  const Retention& kept = options.retention;
  return {{"digests", std::string(name_of(options.sign ? DigestKind::sha_256 : options.digest).text)},
          {"sign", options.sign ? "true" : "false"},
          {"if_ranks_differ",
           !if_ranks_differ ? "unset" : (*if_ranks_differ == IfRanksDiffer::rank_0 ? "rank_0" : "refuse")},
          {"keep_last", std::to_string(kept.keep_last)},
          {"keep_every", std::to_string(kept.keep_every)},
          {"keep_best", std::to_string(kept.keep_best)},
          {"metric", kept.metric},
          {"higher_is_better", kept.higher_is_better ? "true" : "false"}};
}

Facts facts_of_save(const std::filesystem::path& directory, const State& state, const SaveOptions& options) {
  Facts facts = {
      {"step", std::to_string(state.step)}, {"epoch", std::to_string(state.epoch)}, {"directory", directory.string()}};
  for (auto& fact : facts_of(options)) facts.push_back(std::move(fact));
  facts.emplace_back("optimizer", optimizer_of(state));
  facts.emplace_back("parts", parts_of(state));
  return facts;
}

Facts facts_of_load(const std::filesystem::path& directory, const State& state, const LoadOptions& options,
                    std::string_view call) {
  return {{"by", std::string(call)},
          {"directory", directory.string()},
          {"require_signature", options.require_signature ? "true" : "false"},
          {"optimizer", optimizer_of(state)},
          {"parts", parts_of(state)}};
}

void require_same_facts(const ProcessGroup& group, std::string_view verb, const Facts& mine) {
  const std::vector<Facts> all = group.all_gather_object(mine, {.name = "settings of a save or load"});
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    for (std::size_t i = 0; i < all[0].size() && i < all[rank].size(); ++i) {
      const auto& [name, first] = all[0][i];
      if (all[rank][i] == all[0][i]) continue;
      throw Error(ErrorKind::invalid_argument, fmt::format("rank 0 {} {} {}, rank {} {} {}", verb, name, shown(first),
                                                           rank, all[rank][i].first, shown(all[rank][i].second)));
    }
    if (all[rank].size() != all[0].size()) {
      throw Error(ErrorKind::invalid_argument, fmt::format("rank 0 {} different settings from rank {}", verb, rank));
    }
  }
}

}  // namespace lockstep::internal
