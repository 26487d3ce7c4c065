// Copies of a module for threads of one process. module -> ReplicaPool -> DataParallel. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::internal {

// A module and its forward, whatever its type.
struct ModuleReplica {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
};

class ReplicaPool {
 public:
  // make: another module of the same structure. Called when all that were made are in use.
  ReplicaPool(std::shared_ptr<torch::nn::Module> module, std::function<ModuleReplica()> make);

  // `count` replicas in the module's present state. For autograd they have separate parameters, in the module's memory,
  // which forward must not change. The first one's buffers are the module's, too, so that changes by forward are kept;
  // all others have copies. Error{invalid_argument} if the module lies on several devices or has synchronised batch
  // norm, or if `make` returned another structure.
  std::vector<ModuleReplica> take(std::size_t count);
  void give_back(std::vector<ModuleReplica> replicas);

  const torch::nn::Module& module() const { return *module_; }

 private:
  ModuleReplica make_one() const;

  const std::shared_ptr<torch::nn::Module> module_;
  const std::function<ModuleReplica()> make_;
  std::mutex mutex_;
  // State below is protected by mutex_.
  std::vector<ModuleReplica> free_;
};

}  // namespace lockstep::internal
