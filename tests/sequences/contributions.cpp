#include "tests/sequences/contributions.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

namespace lockstep::sequences {

void add(Parameter& to, int rank, const at::Tensor& gradient, const std::vector<int>& forwards, bool joined) {
  to.is_dirty[rank] = to.is_dirty[rank] || gradient.defined();
  to.was_added_to[rank] = to.was_added_to[rank] || gradient.defined();
  to.is_tainted[rank] = to.is_tainted[rank] || (joined && gradient.defined());
  if (!joined) to.pending[rank].push_back({gradient, forwards});
}

void forget(Gradient& gradient, int rank) {
  gradient.pending[rank].clear();
  gradient.is_dirty[rank] = gradient.is_tainted[rank] = false;
}

void zero(Gradient& gradient, int rank) {
  if (has_contributed(gradient, rank)) gradient.pending[rank].clear();
  gradient.is_dirty[rank] = gradient.is_tainted[rank] = false;
}

void add(Gradient& to, const Gradient& saved) {
  if (saved.base.defined()) to.base = to.base.defined() ? to.base + saved.base : saved.base;
  for (int rank = 0; rank < kMostRanks; ++rank) {
    to.pending[rank].insert(to.pending[rank].end(), saved.pending[rank].begin(), saved.pending[rank].end());
    to.is_dirty[rank] = to.is_dirty[rank] || saved.is_dirty[rank];
  }
}

at::Tensor mean_of(const Parameter& parameter, const Setting& setting, const std::vector<double>& weights_of_forwards,
                   bool divides_by_active) {
  at::Tensor sum;
  double weights = 0, active = 0;
  for (int rank = 0; rank < setting.ranks; ++rank) {
    std::set<int> counted;
    for (const Contribution& one : parameter.pending[rank]) {
      double weight = 0;
      for (const int forward : one.forwards) {
        weight += weights_of_forwards[static_cast<std::size_t>(forward)];
        if (counted.insert(forward).second) weights += weights_of_forwards[static_cast<std::size_t>(forward)];
      }
      if (!one.gradient.defined()) continue;
      // Without weight even what is infinite counts for nothing.
      const bool is_nothing = setting.samples && weight == 0;
      const at::Tensor mine = is_nothing        ? at::zeros_like(one.gradient)
                              : setting.samples ? one.gradient * weight
                                                : one.gradient;
      sum = sum.defined() ? sum + mine : mine;
    }
    if (!parameter.pending[rank].empty()) ++active;
  }
  if (!sum.defined()) return sum;
  if (setting.samples && weights == 0) throw Unclear("nothing has a weight");
  return sum / (setting.samples ? weights : divides_by_active ? active : static_cast<double>(setting.ranks));
}

bool is_settled(const Model& model) {
  return std::all_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& one) {
    for (int rank = 0; rank < kMostRanks; ++rank) {
      if (one.is_dirty[rank] || !one.pending[rank].empty()) return false;
    }
    return true;
  });
}
bool was_added_to(const Model& model) {
  return std::any_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& one) {
    return std::any_of(std::begin(one.was_added_to), std::end(one.was_added_to), [](bool is_one) { return is_one; });
  });
}
bool is_mixed(const Model& model) {
  return std::any_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& one) {
    const auto is_there = [](const auto& of_rank) { return !of_rank.empty(); };
    return one.base.defined() && std::any_of(std::begin(one.pending), std::end(one.pending), is_there);
  });
}
bool is_frozen(const Model& model) {
  return std::any_of(model.parameters.begin(), model.parameters.end(),
                     [](const Parameter& one) { return !one.value.requires_grad(); });
}

bool has_contributed(const Gradient& gradient, int rank) {
  return std::any_of(gradient.pending[rank].begin(), gradient.pending[rank].end(),
                     [](const Contribution& each) { return each.gradient.defined(); });
}
bool has_contributed(const Model& model, int rank) {
  return std::any_of(model.parameters.begin(), model.parameters.end(),
                     [rank](const Parameter& one) { return has_contributed(one, rank); });
}

void list_parameters(Model& model) {
  std::vector<Parameter> before = std::exchange(model.parameters, {});
  for (const auto& item : model.net->named_parameters()) {
    Parameter& one = model.parameters.emplace_back();
    one.name = item.key();
    one.value = item.value();
    for (const Parameter& earlier : before) {
      if (earlier.value.is_same(one.value)) one.base = earlier.base;
    }
  }
}

std::vector<Values> values_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Values> all;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor wide = tensor.detach().to(at::kDouble).contiguous();
    const double* data = wide.const_data_ptr<double>();
    all.emplace_back(data, data + wide.numel());
  }
  return all;
}

void put(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::memcpy(to[i].mutable_data_ptr(), from[i].const_data_ptr(), to[i].nbytes());
  }
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

}  // namespace lockstep::sequences
