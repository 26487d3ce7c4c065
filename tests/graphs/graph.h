// A random module: parameters and a program of operations on a hidden value of shape (rows, kWidth). Plain data, so
// that a shrinker can leave parts of it out, and a function that computes it with any tensors as parameters. Any
// thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

namespace lockstep::testing {

inline constexpr std::int64_t kWidth = 8;
inline constexpr std::int64_t kVocabulary = 6;

enum class Layout { contiguous, transposed, channels_last };

struct ParameterSpec {
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  Layout layout = Layout::contiguous;
  bool twice = false;   // registered under two names
  bool sparse = false;  // an embedding's, with sparse gradients
};

enum class OpKind {
  linear,        // a matrix, a bias
  wide,          // two matrices that are large together with their hidden value
  sum_of_views,  // one matrix is the sum of views of two parameters
  position,      // a parameter with exactly the hidden value's elements is added
  scalars,
  convolution,
  embedding,
  chunks,         // split and joined again
  in_place,       // on an intermediate and on views of it
  picks,          // index_select, gather
  other_type,     // float64, bfloat16
  complex,        // conj and neg views
  same_gradient,  // a function that returns one tensor as two gradients
  saved_view,     // a function whose gradients are views of a tensor that it has saved
  undefined,      // a function that returns an undefined gradient
  recomputed,     // computed anew in backward, by a backward inside it
  stacked,
  cube,  // parts and permutations of a parameter of 3 or 4 dimensions
  expanded,
  norm,  // batch norm, with buffers
  fuse,  // whose backward throws in steps that ask for it
  idle,  // has parameters and does not use them
};

// In which forwards an operation takes part.
enum class Use { always, one_rank, odd_steps, changing };

struct Op {
  OpKind kind = OpKind::linear;
  std::vector<int> parameters = {};
  int choice = 0;
  int other = -1;  // an earlier value that is added to the operation's input
  Use use = Use::always;
};

struct Graph {
  std::vector<ParameterSpec> parameters;
  std::vector<Op> ops;
  int rows = 2;
  int more_outputs = 0;
  bool outputs_are_views = false;
  bool auxiliary = false;            // a loss that the module keeps as a member
  bool loss_uses_parameter = false;  // the last one, directly
};

// What a forward is for.
struct Call {
  int rank = 0;
  int step = 0;
  int part = 0;
  bool blows = false;  // its backward throws
};

using Result = std::tuple<at::Tensor, std::vector<at::Tensor>>;

// A batch norm of (input, weight, bias, running mean, running variance, whether in training).
using Norm = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                      const at::Tensor&, bool)>;
at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& mean,
                      const at::Tensor& variance, bool training);

// What a graph computes with. statistics: running mean and variance of its norms, in turn.
struct Tensors {
  std::vector<at::Tensor> parameters = {};
  std::vector<at::Tensor> statistics = {};
  Norm norm = plain_norm;
};

struct Computed {
  Result result;
  at::Tensor auxiliary;
};

Computed compute(const Graph& graph, const Tensors& tensors, const at::Tensor& x, const Call& call, bool training);

bool has(const Graph& graph, OpKind kind);
// Leaves out parameters that no operation names.
void compact(Graph& graph);
std::vector<at::Tensor> initial_parameters(const Graph& graph, std::uint64_t seed);
std::vector<at::Tensor> initial_statistics(const Graph& graph);
std::string to_text(const Graph& graph);

// Values in [-1, 1] that depend on the seed alone.
at::Tensor noise(at::IntArrayRef sizes, std::uint64_t seed);

class GraphModule : public torch::nn::Module {
 public:
  GraphModule(Graph graph, std::uint64_t seed);
  Result forward(const at::Tensor& x, const Call& call);

  const Graph& graph() const { return graph_; }
  // In the graph's order.
  const std::vector<at::Tensor>& tensors() const { return tensors_.parameters; }
  const std::vector<at::Tensor>& statistics() const { return tensors_.statistics; }
  at::Tensor auxiliary;  // of the last forward

 private:
  const Graph graph_;
  Tensors tensors_;
};

}  // namespace lockstep::testing
