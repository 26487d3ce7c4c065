// What the Oracle knows of a model: for each parameter, what each rank has contributed since the last average. Plain
// data of one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sequences/net.h"
#include "tests/sequences/oracle.h"

namespace lockstep::sequences {

// What one backward has given a parameter.
struct Contribution {
  at::Tensor gradient;        // undefined: none
  std::vector<int> forwards;  // that the backward went through
};

// What .grad is made of.
struct Gradient {
  at::Tensor base;                                // what synchronised backwards have left; undefined: none
  std::vector<Contribution> pending[kMostRanks];  // since then
  bool is_dirty[kMostRanks] = {};                 // .grad holds more than base
  bool is_tainted[kMostRanks] = {};               // some of it is of a rank without a batch of its own
  bool was_added_to[kMostRanks] = {};             // since the last average, whatever has been zeroed
};

struct Parameter : Gradient {
  std::string name;
  at::Tensor value;
  at::Tensor velocity;  // of the optimizer; undefined: none
};

struct Model {
  std::shared_ptr<Net> net;
  std::vector<Parameter> parameters;
  std::vector<std::vector<at::Tensor>> buffers;  // by rank
  bool has_joined[kMostRanks] = {};              // the last forward that changed the rank's buffers
  unsigned have_changed = 0;                     // ranks whose buffers have, since they were the same
  bool has_begun = false;                        // a forward on all ranks
  bool has_synchronised = false;                 // a forward
  bool is_fresh = false;                         // has parameters that are not synchronised yet
  std::optional<std::vector<Gradient>> aside;
};

// A backward's gradient of a parameter. joined: of a rank without a batch of its own, which contributes nothing.
void add(Parameter& to, int rank, const at::Tensor& gradient, const std::vector<int>& forwards, bool joined);
void forget(Gradient& gradient, int rank);
// The gradient is zeroed. Where a rank has none, nothing can be seen of it.
void zero(Gradient& gradient, int rank);
// Adds what has been set aside.
void add(Gradient& to, const Gradient& saved);
// The mean of all contributions; undefined if no rank has contributed a gradient. weights: by forward.
at::Tensor mean_of(const Parameter& parameter, const Setting& setting, const std::vector<double>& weights,
                   bool divides_by_active);
// Whether some rank has added to a gradient since the last average, whatever has been zeroed; and to an average.
bool was_added_to(const Model& model);
bool is_mixed(const Model& model);
// Whether nothing waits to be averaged.
bool is_settled(const Model& model);
bool is_frozen(const Model& model);
// Whether the rank has given a parameter, or any, a gradient that counts.
bool has_contributed(const Gradient& gradient, int rank);
bool has_contributed(const Model& model, int rank);
// After the module has got others. The optimizer is a new one.
void list_parameters(Model& model);

std::vector<Values> values_of(const std::vector<at::Tensor>& tensors);
// Autograd does not see it.
void put(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to);
std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors);

}  // namespace lockstep::sequences
