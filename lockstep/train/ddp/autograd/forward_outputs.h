// Derives properties of a forward's graph from its outputs. Pure, but for the nodes that views make; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <unordered_set>

namespace torch::autograd {
struct Node;
}

namespace lockstep::internal {

// An output with a node of this forward: a view, if the output is a parameter; else `output`.
at::Tensor with_node(const at::Tensor& output);

// The place of a node of a graph relative to some forwards.
enum class NodePlace : std::uint8_t { outside, output, inside };

// Whether a graph leads into these forwards otherwise than through their outputs. nodes: all but the root.
// root_is_output: it may be one of them.
bool passes_outputs_by(const std::unordered_set<torch::autograd::Node*>& nodes, bool root_is_output,
                       const std::function<NodePlace(torch::autograd::Node&)>& place_of);

}  // namespace lockstep::internal
