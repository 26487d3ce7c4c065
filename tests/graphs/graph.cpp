#include "tests/graphs/graph.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/format.h"
#include "tests/graphs/dice.h"
#include "tests/graphs/functions.h"

namespace lockstep::testing {

namespace {

const char* name_of(OpKind kind) {
  switch (kind) {
    case OpKind::linear: return "linear";
    case OpKind::wide: return "wide";
    case OpKind::sum_of_views: return "sum_of_views";
    case OpKind::position: return "position";
    case OpKind::scalars: return "scalars";
    case OpKind::convolution: return "convolution";
    case OpKind::embedding: return "embedding";
    case OpKind::chunks: return "chunks";
    case OpKind::in_place: return "in_place";
    case OpKind::picks: return "picks";
    case OpKind::other_type: return "other_type";
    case OpKind::complex: return "complex";
    case OpKind::same_gradient: return "same_gradient";
    case OpKind::saved_view: return "saved_view";
    case OpKind::undefined: return "undefined";
    case OpKind::recomputed: return "recomputed";
    case OpKind::stacked: return "stacked";
    case OpKind::cube: return "cube";
    case OpKind::expanded: return "expanded";
    case OpKind::norm: return "norm";
    case OpKind::fuse: return "fuse";
    case OpKind::idle: return "idle";
  }
  return "?";
}

bool takes_part(const Op& op, const Call& call) {
  switch (op.use) {
    case Use::always: return true;
    case Use::one_rank: return call.rank == 0;
    case Use::odd_steps: return call.step % 2 == 1;
    case Use::changing: return (call.rank + call.step) % 2 == 1;
  }
  return true;
}

// One operation, from its hidden value.
class Step {
 public:
  Step(const Op& op, const Tensors& tensors, const at::Tensor& x, const at::Tensor& h, const Call& call)
      : op_(op), tensors_(tensors), x_(x), h_(h), call_(call), type_(h.scalar_type()) {}

  at::Tensor run(std::size_t& norms, bool training) const {
    switch (op_.kind) {
      case OpKind::linear:
        if (op_.choice % 2 == 1) return at::tanh(at::addmm(typed(1), h_, typed(0)));
        return at::tanh(h_.matmul(typed(0)) + typed(1));
      case OpKind::wide: return wide();
      case OpKind::sum_of_views: return through(typed(0).view({kWidth, -1}) + typed(1).view({kWidth, -1}));
      case OpKind::position: return position();
      case OpKind::scalars: return h_ * typed(0) + typed(1);
      case OpKind::convolution: return h_ + convolution();
      case OpKind::embedding: return h_ + at::embedding(raw(0), rows(), -1, false, op_.choice == 1);
      case OpKind::chunks: return chunks();
      case OpKind::in_place: return in_place();
      case OpKind::picks: return picks();
      case OpKind::other_type: return h_ + h_.to(raw(0).scalar_type()).matmul(raw(0)).to(type_) * 0.3;
      case OpKind::complex: return complex();
      case OpKind::same_gradient: return through(same_gradient_sum(typed(0), typed(1)));
      case OpKind::saved_view: return saved_view();
      case OpKind::undefined: return without_gradient(h_, raw(0)) * typed(0);
      case OpKind::recomputed: return recomputed_layer(h_, raw(0), raw(1));
      case OpKind::stacked: return stacked();
      case OpKind::cube: return cube();
      case OpKind::expanded: return h_ + typed(0).expand({h_.size(0), kWidth});
      case OpKind::norm: {
        const std::size_t first = 2 * norms++;
        return tensors_.norm(h_, raw(0), raw(1), tensors_.statistics[first], tensors_.statistics[first + 1], training);
      }
      case OpKind::fuse: return h_.requires_grad() ? fuse(h_, call_.blows) : h_;
      case OpKind::idle: return h_;
    }
    return h_;
  }

 private:
  const at::Tensor& raw(std::size_t i) const {
    return tensors_.parameters[static_cast<std::size_t>(op_.parameters[i])];
  }
  at::Tensor typed(std::size_t i) const { return raw(i).to(type_); }
  at::Tensor rows() const {
    return (at::arange(h_.size(0), at::kLong) * 3 + call_.step + call_.rank).remainder(kVocabulary);
  }
  // There and back through a matrix of (kWidth, any).
  at::Tensor through(const at::Tensor& matrix) const {
    const at::Tensor z = at::tanh(h_.matmul(matrix));
    return h_ + (op_.choice % 2 == 1 ? z.sum(1, true) : z.narrow(1, 0, 4).sum(1, true)) * 0.1;
  }
  at::Tensor wide() const {
    at::Tensor z = at::linear(h_, typed(0));
    z = op_.choice % 2 == 1 ? z.relu_() : at::tanh(z);
    return h_ + at::linear(z, typed(1)) * 0.05;
  }
  at::Tensor position() const {
    at::Tensor z = h_.matmul(typed(0));
    const at::Tensor place = typed(1);
    z = z.numel() == place.numel() ? z + place.view(z.sizes()) : z + place.view({-1, z.size(1)}).select(0, 0);
    return h_ + at::tanh(z).matmul(typed(2)) * 0.05;
  }
  at::Tensor convolution() const {
    const at::Tensor image = op_.choice % 2 == 1 ? h_.view({-1, 2, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast)
                                                 : h_.view({-1, 2, 2, 2});
    return at::tanh(at::conv2d(image, typed(0), {}, 1, 1)).reshape({-1, kWidth});
  }
  at::Tensor chunks() const {
    const auto parts = op_.choice % 2 == 1 ? h_.chunk(2, 1) : h_.split_with_sizes({3, 5}, 1);
    return at::cat({parts[1], parts[0]}, 1) * typed(0).expand_as(h_);
  }
  at::Tensor in_place() const {
    at::Tensor z = h_.matmul(typed(0));
    z.add_(typed(1));
    z.narrow(1, 2, 3).mul_(0.5);
    z.select(1, 0).add_(1);
    if (op_.choice % 2 == 0) return z.tanh_();
    z.view({-1, 2, 4}).transpose(1, 2).relu_();
    return at::tanh(z);
  }
  at::Tensor picks() const {
    const at::Tensor table = typed(0);
    if (op_.choice % 3 == 0) return h_ + table.index_select(0, rows());
    if (op_.choice % 3 == 1) return h_ + table.gather(0, rows().view({-1, 1}).expand({h_.size(0), kWidth}));
    return h_ + at::index(table, {rows()});
  }
  at::Tensor complex() const {
    const at::Tensor z = h_.to(at::kFloat).to(at::kComplexFloat);
    const at::Tensor& p = raw(0);
    switch (op_.choice % 4) {
      case 0: return h_ + at::real(z.matmul(p)).to(type_) * 0.3;
      case 1: return h_ + at::real(z.matmul(p.conj())).to(type_) * 0.3;
      case 2: return h_ + at::imag(p.conj()).sum(0).to(type_) * 0.3;
      default: return h_ + at::imag(z.matmul(p.conj().t())).to(type_) * 0.3;
    }
  }
  at::Tensor saved_view() const {
    const at::Tensor data = at::cos(at::arange(raw(0).numel(), at::kFloat) + x_.detach().to(at::kFloat).mean());
    return h_ * saved_product(typed(0), typed(1), data.to(type_), op_.choice % 2 == 1).tanh();
  }
  at::Tensor stacked() const {
    const at::Tensor a = typed(0), b = typed(1);
    if (op_.choice % 2 == 1) return h_ + at::stack({a, b}).sum(0);
    return h_ + at::cat({a.slice(0, 0, 4), b.slice(0, 4, 8)}) + at::cat({b.slice(0, 0, 4), a.slice(0, 4, 8)}) * 0.5;
  }
  at::Tensor cube() const {
    at::Tensor p = typed(0);
    if (p.dim() == 4) p = p.permute({3, 0, 2, 1}).reshape({2, kWidth, kWidth});
    const at::Tensor matrix = op_.choice % 2 == 1 ? p.select(0, 0).t() + p.select(0, 1) : p.sum(0);
    return at::tanh(h_.matmul(matrix));
  }

  const Op& op_;
  const Tensors& tensors_;
  const at::Tensor& x_;
  const at::Tensor& h_;
  const Call& call_;
  const at::ScalarType type_;
};

std::int64_t count_of(const std::vector<std::int64_t>& sizes) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return count;
}

}  // namespace

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& mean,
                      const at::Tensor& variance, bool training) {
  return at::batch_norm(x, weight, bias, mean, variance, training, 0.1, 1e-5, false);
}

Computed compute(const Graph& graph, const Tensors& tensors, const at::Tensor& x, const Call& call, bool training) {
  std::vector<at::Tensor> values{x};
  std::size_t norms = 0;
  for (const Op& op : graph.ops) {
    at::Tensor h = values.back();
    if (op.other >= 0) h = h + values[static_cast<std::size_t>(op.other) % values.size()] * 0.2;
    const Step step(op, tensors, x, h, call);
    if (takes_part(op, call)) {
      values.push_back(step.run(norms, training));
    } else if (op.kind == OpKind::norm) {
      ++norms;
    }
  }
  const at::Tensor last = values.back();
  Computed computed;
  auto& [main, more] = computed.result;
  main = graph.outputs_are_views ? (last * 1).view({-1, 2, 4}).transpose(1, 2) : last;
  for (int i = 0; i < graph.more_outputs; ++i) {
    const at::Tensor value = values[static_cast<std::size_t>(i) % values.size()] * 2;
    more.push_back(graph.outputs_are_views ? value.narrow(1, i % 4, 4) : value);
  }
  if (graph.auxiliary) computed.auxiliary = last.abs().mean() * 0.1;
  return computed;
}

bool has(const Graph& graph, OpKind kind) {
  return std::any_of(graph.ops.begin(), graph.ops.end(), [&](const Op& op) { return op.kind == kind; });
}

void compact(Graph& graph) {
  std::vector<ParameterSpec> kept;
  std::map<int, int> number;
  for (Op& op : graph.ops) {
    for (int& parameter : op.parameters) {
      const auto [place, is_new] = number.emplace(parameter, static_cast<int>(kept.size()));
      if (is_new) kept.push_back(graph.parameters[static_cast<std::size_t>(parameter)]);
      parameter = place->second;
    }
  }
  graph.parameters = std::move(kept);
}

at::Tensor noise(at::IntArrayRef sizes, std::uint64_t seed) {
  at::Tensor values = at::empty(sizes, at::kFloat);
  auto* data = values.mutable_data_ptr<float>();
  Dice dice(seed);
  for (std::int64_t i = 0; i < values.numel(); ++i) data[i] = dice.between_ones();
  return values;
}

std::vector<at::Tensor> initial_parameters(const Graph& graph, std::uint64_t seed) {
  std::vector<at::Tensor> tensors;
  for (const ParameterSpec& spec : graph.parameters) {
    Dice dice(seed + tensors.size());
    std::vector<std::int64_t> sizes = spec.sizes;
    at::Tensor values;
    if (spec.dtype == at::kComplexFloat) {
      sizes.push_back(2);
      values = at::view_as_complex(noise(sizes, dice.next()) * 0.4);
    } else {
      values = (noise(sizes, dice.next()) * 0.4).to(spec.dtype);
    }
    if (spec.layout == Layout::transposed) values = values.t().contiguous().t();
    if (spec.layout == Layout::channels_last) values = values.contiguous(at::MemoryFormat::ChannelsLast);
    tensors.push_back(values);
  }
  return tensors;
}

std::vector<at::Tensor> initial_statistics(const Graph& graph) {
  std::vector<at::Tensor> statistics;
  for (const Op& op : graph.ops) {
    if (op.kind != OpKind::norm) continue;
    statistics.push_back(at::zeros({kWidth}));
    statistics.push_back(at::ones({kWidth}));
  }
  return statistics;
}

std::string to_text(const Graph& graph) {
  static const char* const kUses[] = {"", ", on rank 0 only", ", in odd steps only", ", where rank + step is odd"};
  std::string text =
      fmt::format("module: {} rows, {} more outputs{}{}{}\n", graph.rows, graph.more_outputs,
                  graph.outputs_are_views ? ", outputs are views" : "", graph.auxiliary ? ", auxiliary loss" : "",
                  graph.loss_uses_parameter ? ", loss uses the last parameter" : "");
  for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
    const ParameterSpec& spec = graph.parameters[i];
    text += fmt::format("  p{}: {} [", i, c10::toString(spec.dtype));
    for (const auto size : spec.sizes) text += fmt::format(" {}", size);
    text +=
        fmt::format(" ]{}{}{}{}{}\n", spec.layout == Layout::transposed ? " transposed" : "",
                    spec.layout == Layout::channels_last ? " channels last" : "", spec.twice ? " registered twice" : "",
                    spec.sparse ? " sparse" : "", count_of(spec.sizes) >= 16384 ? " large" : "");
  }
  for (const Op& op : graph.ops) {
    text += fmt::format("  {}(", name_of(op.kind));
    for (const int parameter : op.parameters) text += fmt::format(" p{}", parameter);
    text += fmt::format(" ) choice {}", op.choice);
    if (op.other >= 0) text += fmt::format(", + value {}", op.other);
    text += fmt::format("{}\n", kUses[static_cast<std::size_t>(op.use)]);
  }
  return text;
}

GraphModule::GraphModule(Graph graph, std::uint64_t seed) : graph_(std::move(graph)) {
  const std::vector<at::Tensor> values = initial_parameters(graph_, seed);
  tensors_.parameters.resize(values.size());
  std::size_t norms = 0;
  for (const Op& op : graph_.ops) {
    if (op.kind != OpKind::norm) continue;
    torch::nn::BatchNorm1d layer(kWidth);
    register_module(fmt::format("norm{}", norms++), layer);
    const auto place = [&](std::size_t i) { return static_cast<std::size_t>(op.parameters[i]); };
    tensors_.parameters[place(0)] = layer->weight;
    tensors_.parameters[place(1)] = layer->bias;
    tensors_.statistics.push_back(layer->running_mean);
    tensors_.statistics.push_back(layer->running_var);
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string name = fmt::format("p{}", i);
    at::Tensor& tensor = tensors_.parameters[i];
    if (graph_.parameters[i].sparse) {
      const torch::nn::Embedding table(
          torch::nn::EmbeddingOptions(kVocabulary, kWidth).sparse(true)._weight(values[i]));
      register_module(name, table);
      tensor = table->weight;
    } else if (!tensor.defined()) {
      tensor = register_parameter(name, values[i]);
      if (graph_.parameters[i].twice) register_parameter(name + "_again", tensor);
    }
    tensor.set_data(values[i]);
  }
}

Result GraphModule::forward(const at::Tensor& x, const Call& call) {
  Computed computed = compute(graph_, tensors_, x, call, is_training());
  auxiliary = computed.auxiliary;
  return computed.result;
}

}  // namespace lockstep::testing
