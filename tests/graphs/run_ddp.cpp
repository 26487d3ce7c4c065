#include "tests/graphs/run_ddp.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "lockstep/train/ddp/comm_hooks/default_hooks.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/ddp/uneven_inputs/join.h"
#include "lockstep/train/nn/convert_sync_batchnorm.h"

namespace lockstep::testing {

using namespace internal;

namespace {

// A bucket that a hook keeps as error feedback does: whatever happens later, its values must stay.
class KeptBuckets {
 public:
  void keep(std::size_t index, const at::Tensor& buffer) {
    look();
    kept_[index] = {buffer.detach(), buffer.clone()};
  }
  void look() {
    for (const auto& [index, pair] : kept_) {
      if (!at::equal(pair.first.nan_to_num(7), pair.second.nan_to_num(7))) overwritten_ = true;
    }
  }
  bool overwritten() const { return overwritten_; }

 private:
  std::map<std::size_t, std::pair<at::Tensor, at::Tensor>> kept_;  // what was kept, and its copy
  bool overwritten_ = false;
};

class Wrapped final : public Side {
 public:
  Wrapped(const Case& one, const ProcessGroup& group)
      : group_(group), module_(made(one, group)), ddp_(module_, group, options_of(one.mode)) {
    if (one.mode.hook == Hook::all_reduce) ddp_.register_comm_hook(all_reduce_hook());
    if (one.mode.hook == Hook::keeping) {
      ddp_.register_comm_hook([kept = kept_](GradBucket& bucket, const ProcessGroup& among) -> BucketResult {
        kept->keep(bucket.index(), bucket.buffer());
        const at::Tensor mean = bucket.buffer().clone();
        among.all_reduce(mean, ReduceOp::avg);
        return [mean] { return mean; };
      });
    }
    divides_by_active_ = one.mode.divides_by_active;
  }

  int rank() const override { return group_.rank(); }
  int ranks() const override { return group_.size(); }
  std::vector<at::Tensor> parameters() const override { return module_->tensors(); }
  std::vector<at::Tensor> statistics() const override { return module_->statistics(); }
  void train(bool on) override { ddp_.train(on); }

  Forwarded forward(const at::Tensor& x, const Call& call) override { return noted(ddp_(x, call), x); }
  Forwarded bare_forward(const at::Tensor& x, const Call& call) override { return noted(module_->forward(x, call), x); }

  void without_sync(const std::function<void()>& body) override {
    const auto guard = ddp_.no_sync();
    body();
  }

  void backward(const at::Tensor& loss, const std::vector<const Forwarded*>&, bool retain) override {
    torch::autograd::backward({loss}, {}, retain);
    kept_->look();
  }

  void reload() override {
    NamedTensors copies;
    for (const auto& [name, tensor] : ddp_.state_dict(StateDictKeys::module_prefix)) {
      copies.emplace_back(name, tensor.detach().clone());
    }
    ddp_.load_state_dict(copies);
  }

  void join(int mine, const std::function<void(const Batch&)>& step) override {
    std::vector<int> parts(static_cast<std::size_t>(mine));
    std::iota(parts.begin(), parts.end(), 0);
    lockstep::join(group_, parts, [&](int part) { step({.part = part, .rank = rank()}); },
                   {.divide_by_initial_world_size = !divides_by_active_});
  }

  double for_each_shard(const std::function<double(const Batch&)>& body) override {
    return ddp_.for_each_shard([&](const Shard& shard) { return body({.rank = shard.index}); });
  }

  std::string complaint() const override {
    return kept_->overwritten() ? "a bucket that a hook has kept was overwritten" : "";
  }

 private:
  static std::shared_ptr<GraphModule> made(const Case& one, const ProcessGroup& group) {
    // Rank 0's values are what counts.
    auto module = std::make_shared<GraphModule>(one.graph, one.seed + (group.rank() == 0 ? 0 : 1));
    if (one.mode.sync_norm) convert_sync_batchnorm(*module, group);
    return module;
  }
  Forwarded noted(Result result, const at::Tensor& x) const {
    return {.result = std::move(result),
            .auxiliary = module_->auxiliary,
            .parameters = module_->tensors(),
            .weight = static_cast<double>(x.size(0))};
  }

  const ProcessGroup& group_;
  const std::shared_ptr<GraphModule> module_;
  const std::shared_ptr<KeptBuckets> kept_ = std::make_shared<KeptBuckets>();
  DistributedDataParallel<std::shared_ptr<GraphModule>> ddp_;
  bool divides_by_active_ = false;
};

}  // namespace

Trace run_ddp(const Case& one, const ProcessGroup& group) {
  Wrapped side(one, group);
  return play({one.graph, one.schedule, one.seed, one.mode.samples, one.mode.shards}, side);
}

}  // namespace lockstep::testing
