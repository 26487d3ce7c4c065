// DistributedDataParallel makes a libtorch module data parallel: every rank trains its own copy on its own part of the
// data, and backward() leaves the same averaged gradients on all of them, so equal optimizers keep the copies equal.
//
//   ResNet18 model(10);
//   lockstep::DistributedDataParallel ddp(model, world);
//   torch::optim::SGD optimizer(ddp.parameters(), 0.1);
//   ... cross_entropy(ddp(x), y).backward(); optimizer.step();
//
// The constructor compares the ranks' models, throws on all of them if they differ (Error{invalid_argument} naming the
// first parameter), and copies rank 0's parameters and buffers to all. When backward() returns, every gradient is the
// mean over ranks; backward() throws failures: a parameter without gradient (named), a lost rank, a timeout. After Li
// et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020. Thread rule: see
// DdpBase. In a group of one there are no hooks and no copies.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "lockstep/train/ddp/converted_arguments.h"
#include "lockstep/train/ddp/ddp_base.h"
#include "lockstep/train/ddp/first_argument.h"

namespace lockstep {

namespace internal {

template <class Module>
concept SharedModule = requires(const Module& module) { module.ptr(); } ||
                       std::is_convertible_v<const Module&, std::shared_ptr<torch::nn::Module>>;

}  // namespace internal

// Module: a module holder (TORCH_MODULE) or a std::shared_ptr to a module, with any forward().
template <class Module>
class DistributedDataParallel : public DdpBase {
  static_assert(internal::SharedModule<Module>,
                "DistributedDataParallel shares its module: for a plain struct Net : torch::nn::Module write "
                "auto model = std::make_shared<Net>(); and pass that, or declare a holder with TORCH_MODULE");

 public:
  explicit DistributedDataParallel(Module module, ProcessGroup group, const DdpOptions& options = {})
      : DdpBase(shared(module), std::move(group), options), module_(std::move(module)) {}

  // Has the arguments and the result of the module's forward().
  template <class... Args>
  auto forward(Args&&... args) {
    internal::ForwardScope scope = begin_forward(internal::first_tensor(args...), internal::samples_of(args...));
    auto output = noting_failures([&] { return call(std::forward<Args>(args)...); });
    if constexpr (std::is_same_v<decltype(output), at::Tensor>) {
      if (options().output_device) output = delivered(output);
    }
    scope.has_returned(output);
    return output;
  }
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  // The wrapped module, with the members that only it has.
  const Module& module() const { return module_; }
  Module& module() { return module_; }
  // So that code written for a module holder (ddp->forward(x)) compiles unchanged.
  DistributedDataParallel* operator->() { return this; }

 private:
  // Other ranks' errors can quote its exception: see ProcessGroup::note_failure().
  template <class Run>
  auto noting_failures(Run&& run) const {
    try {
      return run();
    } catch (...) {
      group().note_exception("forward of DistributedDataParallel");
      throw;
    }
  }

  template <class... Args>
  auto call(Args&&... args) {
    // A module that wants to change its arguments gets the caller's own, which must then have its type.
    if constexpr (requires { module_->forward(convert(std::forward<Args>(args))...); }) {
      if (converts_inputs()) return module_->forward(convert(std::forward<Args>(args))...);
    }
    return module_->forward(std::forward<Args>(args)...);
  }

  template <class Arg>
  decltype(auto) convert(Arg&& arg) {
    return internal::with_converted_tensors(std::forward<Arg>(arg),
                                            [this](const at::Tensor& tensor) { return converted(tensor); });
  }

  static std::shared_ptr<torch::nn::Module> shared(const Module& module) {
    if constexpr (requires { module.ptr(); }) {
      return module.ptr();
    } else {
      return module;
    }
  }

  Module module_;
};

}  // namespace lockstep
