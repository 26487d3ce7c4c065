#include "tests/graphs/functions.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace lockstep::testing {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Fuse : Function<Fuse> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, bool blows) {
    context->saved_data["blows"] = blows;
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (context->saved_data["blows"].toBool()) throw Blown{};
    return {gradients[0], at::Tensor()};
  }
};

struct SameGradient : Function<SameGradient> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& a, const at::Tensor& b) { return a + b; }
  static variable_list backward(AutogradContext*, variable_list gradients) { return {gradients[0], gradients[0]}; }
};

struct SavedProduct : Function<SavedProduct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& a, const at::Tensor& b, const at::Tensor& data,
                            bool as_blobs) {
    context->save_for_backward({data});
    context->saved_data["a"] = a.sizes();
    context->saved_data["b"] = b.sizes();
    context->saved_data["as_blobs"] = as_blobs;
    return (a.flatten() * data).sum() + (b.flatten() * data).sum();
  }
  static variable_list backward(AutogradContext* context, variable_list) {
    const at::Tensor data = context->get_saved_variables()[0];
    const auto part = [&](const char* which) {
      const std::vector<std::int64_t> sizes = context->saved_data[which].toIntVector();
      if (!context->saved_data["as_blobs"].toBool()) return data.view(sizes);
      return at::from_blob(
          data.mutable_data_ptr(), sizes, [data](void*) {}, data.options());
    };
    return {part("a"), part("b"), at::Tensor(), at::Tensor()};
  }
};

struct WithoutGradient : Function<WithoutGradient> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, const at::Tensor&) { return x.clone(); }
  static variable_list backward(AutogradContext*, variable_list gradients) { return {gradients[0], at::Tensor()}; }
};

at::Tensor layer(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::tanh(x.matmul(weight.to(x.scalar_type())) + bias.to(x.scalar_type()));
}

struct Recomputed : Function<Recomputed> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const c10::IValue& parameters) {
    context->save_for_backward({x});
    context->saved_data["parameters"] = parameters;
    const auto list = parameters.toTensorVector();
    return layer(x, list[0], list[1]);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::AutoGradMode on(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const auto list = context->saved_data["parameters"].toTensorVector();
    torch::autograd::backward({layer(x, list[0], list[1])}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

at::Tensor fuse(const at::Tensor& x, bool blows) { return Fuse::apply(x, blows); }
at::Tensor same_gradient_sum(const at::Tensor& a, const at::Tensor& b) { return SameGradient::apply(a, b); }
at::Tensor saved_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& data, bool as_blobs) {
  return SavedProduct::apply(a, b, data, as_blobs);
}
at::Tensor without_gradient(const at::Tensor& x, const at::Tensor& a) { return WithoutGradient::apply(x, a); }
at::Tensor recomputed_layer(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!x.requires_grad()) return layer(x, weight, bias);
  return Recomputed::apply(x, c10::IValue(std::vector<at::Tensor>{weight, bias}));
}

}  // namespace lockstep::testing
