// recomputed(x, module): module(x), computed a second time in backward, in a backward of its own, instead of being
// kept.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace lockstep::testing {

template <class Module>
struct Recomputed : torch::autograd::Function<Recomputed<Module>> {
  struct Held final : torch::CustomClassHolder {
    explicit Held(Module of) : module(std::move(of)) {}
    Module module;
  };

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, Module module) {
    context->save_for_backward({x});
    context->saved_data["module"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(module));
    return module->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto held = c10::static_intrusive_pointer_cast<Held>(context->saved_data.at("module").toCapsule());
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode grad_mode(true);
    torch::autograd::backward({held->module->forward(x)}, {gradients[0]});
    return {x.grad(), {}};
  }
};

template <class Module>
at::Tensor recomputed(const at::Tensor& x, const Module& module) {
  return Recomputed<Module>::apply(x, module);
}

}  // namespace lockstep::testing
