// Reads an optimizer's state dict of Python: its values in a file -> options, and the Checkpoint that add_optimizer()
// would make -> checked_load(). Collects all that does not fit. Errors as of load_torch_optimizer().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/formats/torch_file.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/optimizer_state.h"

namespace lockstep::internal {

// Of a dict: "fc.weight", "3".
std::string key_text(const PickleValue& key);

class TorchOptimizerReader {
 public:
  // REQUIRES: all of them live on. dict: it has state and param_groups. key: its path in the file, for errors.
  TorchOptimizerReader(const TorchFile& file, const PickleValue& dict, torch::optim::Optimizer& optimizer,
                       std::string_view key);

  // What it returns changes the optimizer.
  std::function<void()> checked_load();

 private:
  template <class Kind>
  void require_kind(const PickleValue& group) const;
  template <class Kind>
  void read_groups();
  template <class Kind>
  void read_state();
  void read_parameters(std::size_t group, const PickleValue& options);
  void read_entry(const PickleValue& entry, const std::string& where,
                  const std::map<std::string, at::ScalarType>& numbers, at::ScalarType type);
  at::Tensor value_of(const PickleValue& value, const std::string& where, at::ScalarType type, bool is_number);
  void problem(const std::string& text) { problems_ += "\n  " + text; }
  void throw_problems() const;

  const TorchFile& file_;
  const PickleValue dict_;
  torch::optim::Optimizer& optimizer_;
  const std::string prefix_;  // "optimizer."
  Checkpoint checkpoint_;
  OptionsByGroup options_;
  std::vector<at::Tensor> parameters_;
  std::map<std::string, std::size_t> numbers_;  // of the parameters, by their names in the file
  std::uint64_t bytes_ = 0;
  std::string problems_;
};

}  // namespace lockstep::internal
