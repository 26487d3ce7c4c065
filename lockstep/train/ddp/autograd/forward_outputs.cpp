#include "lockstep/train/ddp/autograd/forward_outputs.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "lockstep/train/ddp/autograd/gradient_hooks.h"

namespace lockstep::internal {

using torch::autograd::Node;

at::Tensor with_node(const at::Tensor& output) {
  const bool is_parameter =
      output.defined() && output.requires_grad() && output.grad_fn() == nullptr && GradientHook::watches(output);
  return is_parameter && at::GradMode::is_enabled() ? output.view_as(output) : output;
}

bool passes_outputs_by(const std::unordered_set<Node*>& nodes, bool root_is_output,
                       const std::function<NodePlace(Node&)>& place_of) {
  std::unordered_set<const Node*> behind_others;
  for (Node* node : nodes) {
    const bool is_outside = place_of(*node) == NodePlace::outside;
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (edge.function == nullptr) continue;
      behind_others.insert(&*edge.function);
      if (is_outside && place_of(*edge.function) == NodePlace::inside) return true;
    }
  }
  return !root_is_output && std::ranges::any_of(nodes, [&](Node* node) {
    return !behind_others.contains(node) && place_of(*node) == NodePlace::inside;
  });
}

}  // namespace lockstep::internal
