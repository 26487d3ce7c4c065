#include "lockstep/train/parallel/replica_pool.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/vector_kernels.h"
#include "lockstep/train/nn/convert_sync_batchnorm.h"

namespace lockstep::internal {
namespace {

// clone() draws initial values from torch's generator, and then overwrites them. Restores the generator's state.
class KeepRandomState {
 public:
  KeepRandomState() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepRandomState() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeepRandomState(const KeepRandomState&) = delete;
  KeepRandomState& operator=(const KeepRandomState&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

void check_one_device(const torch::nn::Module& module) {
  std::set<std::string> devices;
  for (const at::Tensor& tensor : module.parameters()) devices.insert(tensor.device().str());
  for (const at::Tensor& tensor : module.buffers()) devices.insert(tensor.device().str());
  if (devices.size() <= 1) return;
  std::string names;
  for (const std::string& device : devices) names += (names.empty() ? "" : ", ") + device;
  throw Error(ErrorKind::invalid_argument,
              "DataParallel: the module lies on several devices (" + names +
                  "), and a replica must fit on one. Use DistributedDataParallel, in which a rank may have several");
}

void check_not_synchronised(const torch::nn::Module& module) {
  for (const auto& part : module.named_modules()) {
    if (!is_sync_batchnorm(*part.value())) continue;
    throw Error(ErrorKind::invalid_argument,
                "DataParallel: " + (part.key().empty() ? "the module" : part.key()) +
                    " is a synchronised batch norm, but replicas in threads of one process cannot take part in "
                    "collectives. Use DistributedDataParallel, or a plain batch norm");
  }
}

void check(const torch::nn::Module& module) {
  check_one_device(module);
  check_not_synchronised(module);
}

enum class Memory { shared, copied };

void point_at(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& at_these, Memory memory) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor data = at_these[i].detach();
    tensors[i].set_data(memory == Memory::shared ? data : data.clone());
    tensors[i].set_requires_grad(at_these[i].requires_grad());
  }
}

}  // namespace

ReplicaPool::ReplicaPool(std::shared_ptr<torch::nn::Module> module, std::function<ModuleReplica()> make)
    : module_(std::move(module)), make_(std::move(make)) {
  check(*module_);
  choose_vector_kernels();
}

std::vector<ModuleReplica> ReplicaPool::take(std::size_t count) {
  check(*module_);
  std::vector<ModuleReplica> taken;
  {
    const std::lock_guard lock(mutex_);
    const auto reused = static_cast<std::ptrdiff_t>(std::min(count, free_.size()));
    taken.assign(std::make_move_iterator(free_.end() - reused), std::make_move_iterator(free_.end()));
    free_.resize(free_.size() - static_cast<std::size_t>(reused));
  }
  while (taken.size() < count) taken.push_back(make_one());
  const auto parameters = module_->parameters();
  const auto buffers = module_->buffers();
  const auto modules = module_->modules();
  for (std::size_t i = 0; i < count; ++i) {
    torch::nn::Module& replica = *taken[i].module;
    point_at(replica.parameters(), parameters, Memory::shared);
    point_at(replica.buffers(), buffers, i == 0 ? Memory::shared : Memory::copied);
    // Parents come before their children, so every module ends up with its own flag.
    for (std::size_t j = 0; const auto& part : replica.modules()) part->train(modules[j++]->is_training());
  }
  return taken;
}

void ReplicaPool::give_back(std::vector<ModuleReplica> replicas) {
  const std::lock_guard lock(mutex_);
  std::move(replicas.begin(), replicas.end(), std::back_inserter(free_));
}

ModuleReplica ReplicaPool::make_one() const {
  const KeepRandomState keep;
  ModuleReplica made = make_();
  const auto shapes = [](const std::vector<at::Tensor>& tensors) {
    std::vector<std::vector<std::int64_t>> all;
    for (const at::Tensor& tensor : tensors) all.push_back(tensor.sizes().vec());
    return all;
  };
  if (made.module == module_ || made.module->modules().size() != module_->modules().size() ||
      shapes(made.module->parameters()) != shapes(module_->parameters()) ||
      shapes(made.module->buffers()) != shapes(module_->buffers())) {
    throw Error(ErrorKind::invalid_argument,
                "DataParallel: `make` returned " +
                    std::string(made.module == module_ ? "the module itself" : "a module of another structure") +
                    "; it must build a new copy of the same model at each call");
  }
  return made;
}

}  // namespace lockstep::internal
