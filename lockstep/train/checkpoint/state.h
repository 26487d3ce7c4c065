// State is the training state that save() and load() take: references to the program's own objects, each of which is
// optional.
//   lockstep::State state{.model = ddp, .optimizer = optimizer, .sampler = sampler, .user = json};
// Random numbers and, in lockstep mode, the mode's own state are always part of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/train/ddp/distributed_data_parallel.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace lockstep {

// A DistributedDataParallel, a module, a holder or a pointer to one. Parameters are the same on all ranks, and each
// rank writes a part of them. Buffers, and parameters that a DistributedDataParallel ignores, are stored from rank 0.
class ModelRef {
 public:
  ModelRef() = default;
  template <class Module>
  ModelRef(DistributedDataParallel<Module>& ddp) : module_(&*ddp.module()), ddp_(&ddp) {}
  ModelRef(torch::nn::Module& module) : module_(&module) {}
  template <class Holder>
    requires requires(Holder& holder) {
      { *holder } -> std::convertible_to<torch::nn::Module&>;
    }
  ModelRef(Holder& holder) : module_(&*holder) {}

  torch::nn::Module* module() const { return module_; }
  DdpBase* ddp() const { return ddp_; }  // null: a plain module

 private:
  torch::nn::Module* module_ = nullptr;
  DdpBase* ddp_ = nullptr;
};

// Of the kinds that optimizer_state.h stores, or a ZeroRedundancyOptimizer of one.
class OptimizerRef {
 public:
  OptimizerRef() = default;
  OptimizerRef(torch::optim::Optimizer& optimizer) : optimizer_(&optimizer) {}
  torch::optim::Optimizer* get() const { return optimizer_; }

 private:
  torch::optim::Optimizer* optimizer_ = nullptr;
};

// An object that torch::save() can store, the same on all ranks: a sampler, a loader, a GradScaler. Rank 0's is stored.
class ArchiveRef {
 public:
  ArchiveRef() = default;
  template <class Object>
    requires requires(Object& object, torch::serialize::OutputArchive& out, torch::serialize::InputArchive& in) {
      object.save(out);
      object.load(in);
    }
  ArchiveRef(Object& object)
      : save([&object](torch::serialize::OutputArchive& out) { object.save(out); }),
        load([&object](torch::serialize::InputArchive& in) { object.load(in); }) {}

  std::function<void(torch::serialize::OutputArchive&)> save;  // empty: missing
  std::function<void(torch::serialize::InputArchive&)> load;
};

// An object with different tensors on each rank, such as PowerSgd. At another number of ranks the first ranks keep
// theirs, and additional ranks take rank 0's.
class TensorsRef {
 public:
  using Tensors = std::map<std::string, at::Tensor>;
  TensorsRef() = default;
  template <class Object>
    requires requires(Object& object, const Tensors& tensors) {
      { object.state("") } -> std::convertible_to<Tensors>;
      object.load_state(tensors, "");
    }
  TensorsRef(Object& object)
      : save([&object] { return object.state(""); }),
        load([&object](const Tensors& tensors) { object.load_state(tensors, ""); }) {}

  std::function<Tensors()> save;  // empty: missing
  std::function<void(const Tensors&)> load;
};

// A JSON value, also null, whose type has dump() and a static parse(), such as nlohmann::json. Rank 0's is stored.
class JsonRef {
 public:
  JsonRef() = default;
  template <class Json>
    requires requires(Json& json, const std::string& text) {
      { json.dump() } -> std::convertible_to<std::string>;
      json = Json::parse(text);
    }
  JsonRef(Json& json)
      : save([&json] { return std::string(json.dump()); }),
        load([&json](const std::string& text) { json = Json::parse(text); }) {}

  std::function<std::string()> save;  // empty: missing
  std::function<void(const std::string&)> load;
};

struct State {
  ModelRef model = {};
  OptimizerRef optimizer = {};
  ArchiveRef sampler = {};
  ArchiveRef loader = {};
  ArchiveRef scaler = {};
  TensorsRef hook = {};
  JsonRef user = {};
  // The position of the training; load() returns them.
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::map<std::string, double> metrics = {};  // for Retention::metric; only finite ones are stored
};

}  // namespace lockstep
