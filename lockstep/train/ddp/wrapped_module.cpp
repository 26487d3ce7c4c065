#include "lockstep/train/ddp/wrapped_module.h"

#include <ATen/MemoryOverlap.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>

#include "lockstep/train/ddp/autograd/backward_watch.h"
#include "lockstep/train/ddp/autograd/gradient_hooks.h"
#include "lockstep/train/ddp/checks/ddp_errors.h"

namespace lockstep::internal {
namespace {

NamedTensors pairs_of(const torch::OrderedDict<std::string, at::Tensor>& dict) {
  NamedTensors pairs;
  pairs.reserve(dict.size());
  for (const auto& item : dict) pairs.emplace_back(item.key(), item.value());
  return pairs;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

bool contains(const std::vector<at::Tensor>& tensors, const at::Tensor& tensor) {
  return std::ranges::any_of(tensors, [&](const at::Tensor& other) { return other.is_same(tensor); });
}

// Weights whose gradients are sparse.
std::vector<at::Tensor> sparse_weights(const torch::nn::Module& module) {
  std::vector<at::Tensor> weights;
  for (const auto& one : module.modules()) {
    if (const auto* embedding = one->as<torch::nn::EmbeddingImpl>()) {
      if (embedding->options.sparse()) weights.push_back(embedding->weight);
    } else if (const auto* bag = one->as<torch::nn::EmbeddingBagImpl>()) {
      if (bag->options.sparse()) weights.push_back(bag->weight);
    }
  }
  return weights;
}

// Averaged or copied tensors need separate memory for each element.
void check_tensors(const NamedTensors& tensors, const std::string& kind) {
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) throw options_error("the " + kind + " " + name + " is undefined");
    if (tensor.layout() != at::kStrided) {
      throw options_error("the " + kind + " " + name + " has the layout " + c10::str(tensor.layout()) +
                          "; only dense ones can be synchronised. Convert it by to_dense(), or list it in `ignored`");
    }
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
      throw options_error("several elements of the " + kind + " " + name +
                          " share memory, as after expand(), so it cannot be written to; register a clone() of it");
    }
  }
}

void check_names(const std::vector<std::string>& names, const char* option, const NamedTensors& tensors) {
  for (const std::string& name : names) {
    if (std::ranges::any_of(tensors, [&](const auto& entry) { return entry.first == name; })) continue;
    throw options_error(std::string(option) + " names " + name + ", which the module does not have");
  }
}

NamedTensors without(const NamedTensors& tensors, const std::vector<std::string>& ignored) {
  NamedTensors rest;
  for (const auto& item : tensors) {
    if (!contains(ignored, item.first)) rest.push_back(item);
  }
  return rest;
}

TrainedParameters trained_parameters(const torch::nn::Module& module, const NamedTensors& parameters,
                                     const DdpOptions& options) {
  const std::vector<at::Tensor> sparse = sparse_weights(module);
  TrainedParameters trained;
  std::vector<at::Tensor> known;
  for (const auto& [name, tensor] : parameters) {
    // A tensor that is registered under several names is one parameter.
    if (!tensor.requires_grad() || contains(known, tensor)) continue;
    if (GradientHook::watches(tensor) || BackwardWatch::watches(tensor)) throw wrapped_twice_error(name);
    known.push_back(tensor);
    trained.push_back({.name = name,
                       .tensor = tensor,
                       .sparse = contains(sparse, tensor),
                       .delayed = contains(options.delay_all_reduce_named_params, name)});
  }
  if (trained.empty()) throw nothing_to_train_error();
  return trained;
}

std::vector<at::Tensor> cast_parameters(const torch::nn::Module& module, const MixedPrecision& mixed) {
  if (!mixed.param_dtype) return {};
  if (mixed.buffer_dtype == mixed.param_dtype) return module.parameters();
  std::vector<at::Tensor> cast;
  for (const auto& one : module.modules()) {
    if (one->named_buffers(/*recurse=*/false).contains("running_mean")) continue;
    const auto parameters = one->parameters(/*recurse=*/false);
    cast.insert(cast.end(), parameters.begin(), parameters.end());
  }
  return cast;
}

std::optional<at::Device> input_device_of(const NamedTensors& parameters, const DdpOptions& options) {
  std::vector<at::Device> devices;
  for (const auto& [name, tensor] : parameters) {
    if (!devices.empty() && tensor.device().type() != devices.front().type()) {
      throw options_error("the module's parameters lie on different types of devices: " + parameters.front().first +
                          " on " + devices.front().str() + ", " + name + " on " + tensor.device().str());
    }
    if (std::ranges::find(devices, tensor.device()) == devices.end()) devices.push_back(tensor.device());
  }
  if (options.device_ids.size() > 1) {
    throw options_error("device_ids has " + std::to_string(options.device_ids.size()) +
                        " entries; one process drives one device, so start a process for each");
  }
  if (options.device_ids.empty() && !options.output_device) return {};
  if (devices.size() == 1 && !devices.front().is_cpu()) return devices.front();
  throw options_error(std::string("device_ids and output_device are for a module on one device that is not the CPU; "
                                  "this one lies on ") +
                      (devices.size() > 1 ? std::to_string(devices.size()) + " devices, and places its inputs itself"
                                          : std::string("the CPU")) +
                      ". Leave them unset");
}

}  // namespace

WrappedModule wrapped(const torch::nn::Module& module, const DdpOptions& options) {
  const NamedTensors parameters = named_parameters_of(module);
  const NamedTensors buffers = named_buffers_of(module);
  NamedTensors all = parameters;
  all.insert(all.end(), buffers.begin(), buffers.end());
  check_names(options.ignored, "ignored", all);
  check_names(options.delay_all_reduce_named_params, "delay_all_reduce_named_params", parameters);
  WrappedModule result{.parameters = without(parameters, options.ignored),
                       .buffers = without(buffers, options.ignored),
                       .trained = {},
                       .cast = cast_parameters(module, options.mixed_precision),
                       .input_device = {}};
  check_tensors(result.parameters, "parameter");
  check_tensors(result.buffers, "buffer");
  result.input_device = input_device_of(parameters, options);
  result.trained = trained_parameters(module, result.parameters, options);
  return result;
}

void check_forward_changes_none(const torch::nn::Module& module, const DdpOptions& options) {
  // Ranks that do not compare may differ.
  if (options.compare_parameters_every == 0) return;
  for (const auto& item : module.named_modules()) {
    std::optional<double> max_norm;
    if (const auto* embedding = item.value()->as<torch::nn::EmbeddingImpl>()) {
      max_norm = embedding->options.max_norm();
    } else if (const auto* bag = item.value()->as<torch::nn::EmbeddingBagImpl>()) {
      max_norm = bag->options.max_norm();
    }
    const std::string weight = item.key().empty() ? "weight" : item.key() + ".weight";
    if (max_norm && !contains(options.ignored, weight)) throw renormalised_parameter_error(weight);
  }
}

NamedTensors named_parameters_of(const torch::nn::Module& module) { return pairs_of(module.named_parameters()); }
NamedTensors named_buffers_of(const torch::nn::Module& module) { return pairs_of(module.named_buffers()); }

}  // namespace lockstep::internal
