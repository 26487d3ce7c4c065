// ZeroRedundancyOptimizer<Optimizer> is an optimizer whose state is spread over the ranks (ZeRO, stage 1): each rank
// updates some of the parameters, keeps state for these only, and then the ranks exchange the updated parameters.
// gradients, the same on all ranks -> part of each rank -> exchange -> parameters, bitwise the same on all ranks.
// After torch.distributed.optim.ZeroRedundancyOptimizer, which assigns parameters in the same way (partition.h).
//
//   DistributedDataParallel ddp(model, group);
//   ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(ddp.parameters(), group, torch::optim::AdamOptions(1e-3));
//
// It is a torch::optim::Optimizer with all parameters: zero_grad(), param_groups() and schedulers of learning rates
// work as with a plain one, and options may change between steps, equally on all ranks. Parameters may be of several
// types. Belongs to one thread. The constructor, step(), add_param_group(), consolidate_state_dict() and
// load_state_dict() are called by all ranks, block, and fail as ProcessGroup's calls do.
#pragma once

#include <torch/optim/optimizer.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/optimizer_state.h"
#include "lockstep/train/optim/collective_step.h"
#include "lockstep/train/optim/partition.h"

namespace torch::optim {
class LBFGS;
}

namespace lockstep {

// Optimizers that update each parameter by its own gradient and state. LBFGS looks at all parameters at once.
template <class T>
concept ElementwiseOptimizer =
    std::derived_from<T, torch::optim::Optimizer> && !std::derived_from<T, torch::optim::LBFGS>;

// The part that does not depend on the type of optimizer.
class ShardedOptimizer : public torch::optim::Optimizer,
                         public internal::PartedOptimizer,
                         public internal::CollectiveStep {
 public:
  // The closure computes the loss once, on every rank, before parameters change.
  at::Tensor step(LossClosure closure = nullptr) override;
  // Earlier parameters keep their owners. Error{invalid_argument} as of the constructor; then it is unchanged.
  void add_param_group(const torch::optim::OptimizerParamGroup& added);

  // Gathers the state of all ranks at rank `to`, where state_dict() has it until the next step.
  // Error{invalid_argument} on all ranks for a kind of optimizer that checkpoint/optimizer_state.h cannot store.
  void consolidate_state_dict(int to = 0);
  // As add_optimizer() stores a plain optimizer of the same kind, so that either can load it, on any number of ranks.
  // Error{invalid_argument} where it is not consolidated.
  const Checkpoint& state_dict() const;
  // Each rank loads its part; all ranks pass the same. Error{invalid_argument} on all ranks, naming ranks and entries
  // that do not fit; then the optimizer is unchanged on all of them.
  void load_state_dict(const Checkpoint& state);

  // This rank's part, with its state.
  const torch::optim::Optimizer& local_optimizer() const { return *local_; }
  // For each rank, which parameters it updates: by parameter group, their indices.
  using Part = internal::Part;
  const std::vector<Part>& parts() const { return parts_; }

  // Error{invalid_argument}: an archive would hold one rank's part. Use state_dict().
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // For lockstep::save() and load(), which store it at any number of ranks.
  void add_part(Checkpoint& checkpoint) const override;
  std::function<void()> checked_load_part(const Checkpoint& checkpoint) override;
  // For GradScaler.
  const ProcessGroup& step_group() const override { return group_; }

 protected:
  using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;
  using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const ParamGroups&)>;
  ShardedOptimizer(const ParamGroups& groups, const ProcessGroup& group, MakeOptimizer make);

 private:
  std::vector<Part> partition() const;
  ParamGroups part_of_groups(int rank) const;
  std::vector<std::size_t> numbers_of(int rank) const;
  void exchange_updated() const;
  void copy_options_to(torch::optim::Optimizer& local) const;
  Checkpoint without_others(const Checkpoint& state) const;
  void require_all_partitioned() const;

  const ProcessGroup group_;
  const MakeOptimizer make_;
  std::vector<Part> parts_;
  std::shared_ptr<torch::optim::Optimizer> local_;
  std::optional<Checkpoint> consolidated_;
};

template <ElementwiseOptimizer Local>
class ZeroRedundancyOptimizer : public ShardedOptimizer {
 public:
  // options: of a Local. Error{invalid_argument} on all ranks, naming the first difference, if ranks have other
  // parameters than rank 0 (number, order, shape, strides, type), other groups of them, or other options; if there are
  // none; if one occurs twice.
  template <class Options>
  ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters, const ProcessGroup& group, const Options& options)
      : ZeroRedundancyOptimizer(ParamGroups{torch::optim::OptimizerParamGroup(std::move(parameters))}, group, options) {
  }
  // Several groups, each with its own options if it has them.
  template <class Options>
  ZeroRedundancyOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, const ProcessGroup& group,
                          const Options& options)
      : ShardedOptimizer(groups, group,
                         [options](const ParamGroups& part) { return std::make_unique<Local>(part, options); }) {}
};

}  // namespace lockstep
