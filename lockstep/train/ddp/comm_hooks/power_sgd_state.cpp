#include "lockstep/train/ddp/comm_hooks/power_sgd_state.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::internal {
namespace {

using Counters = PowerSgdState::Counters;

// The names of counters in a saved state.
constexpr std::pair<const char*, std::int64_t Counters::*> kCounters[] = {
    {"iteration", &Counters::iteration},
    {"random_draws", &Counters::random_draws},
    {"next_report", &Counters::next_report},
    {"elements_before", &Counters::elements_before},
    {"elements_after", &Counters::elements_after},
    {"ranks", &Counters::ranks},
    {"rank", &Counters::rank}};

std::optional<std::string> name_in(std::string_view name, std::string_view kind) {
  if (!name.starts_with(kind)) return {};
  return std::string(name.substr(kind.size()));
}

}  // namespace

// numpy.random.RandomState(random_seed).randint(1'000'000'000), which PyTorch uses for this.
std::uint64_t PowerSgdState::next_seed() {
  constexpr std::uint32_t kMask = (1U << 30) - 1, kEnd = 1'000'000'000;
  for (;;) {
    ++counters.random_draws;
    const auto value = static_cast<std::uint32_t>(random_()) & kMask;
    if (value < kEnd) return value;
  }
}

void PowerSgdState::note_ranks(const ProcessGroup& group, bool uses_errors) {
  if (std::exchange(is_loaded, false) && uses_errors) {
    int others = counters.ranks != group.size() || counters.rank != group.rank() ? 1 : 0;
    group.all_reduce(others, ReduceOp::max, {.name = "PowerSgd after load_state()"});
    if (others != 0) errors.clear();
  }
  counters.ranks = group.size();
  counters.rank = group.rank();
}

at::Tensor PowerSgdState::remembered(const Memory& memory, const std::string& name, const at::Tensor& like,
                                     const char* what) {
  const at::Tensor& tensor = memory.at(name);
  if (tensor.numel() == like.numel() && tensor.scalar_type() == like.scalar_type()) return tensor.to(like.device());
  const auto text_of = [](const at::Tensor& t) {
    return std::to_string(t.numel()) + " elements of type " + c10::toString(t.scalar_type());
  };
  throw Error(ErrorKind::invalid_argument,
              "PowerSgd: the saved state does not match the model, its buckets or the options: " + std::string(what) +
                  " of " + name + " is " + text_of(tensor) + " in the state, but the run needs " + text_of(like) +
                  "; use a new PowerSgd");
}

std::map<std::string, at::Tensor> PowerSgdState::tensors(const std::string& prefix) const {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, counter] : kCounters)
    tensors[prefix + name] = at::scalar_tensor(counters.*counter, at::kLong);
  for (const auto& [name, error] : errors) tensors[prefix + "error." + name] = error.clone();
  for (const auto& [name, q] : qs) tensors[prefix + "q." + name] = q.clone();
  return tensors;
}

void PowerSgdState::load(const std::map<std::string, at::Tensor>& tensors, const std::string& prefix) {
  Counters loaded;
  std::size_t found = 0;
  Memory loaded_errors, loaded_qs;
  for (auto entry = tensors.lower_bound(prefix); entry != tensors.end() && entry->first.starts_with(prefix); ++entry) {
    const auto& [full_name, tensor] = *entry;
    const std::string_view name = std::string_view(full_name).substr(prefix.size());
    const auto known = std::find_if(std::begin(kCounters), std::end(kCounters),
                                    [&](const auto& counter) { return name == counter.first; });
    if (known != std::end(kCounters) && tensor.numel() == 1 && tensor.scalar_type() == at::kLong &&
        (loaded.*known->second = tensor.item<std::int64_t>()) >= 0) {
      ++found;
    } else if (const auto error = name_in(name, "error.")) {
      loaded_errors[*error] = tensor.clone();
    } else if (const auto q = name_in(name, "q.")) {
      loaded_qs[*q] = tensor.clone();
    } else {
      throw Error(ErrorKind::invalid_argument, "PowerSgd: " + full_name + " is not an entry of a saved state");
    }
  }
  if (found != std::size(kCounters)) {
    throw Error(ErrorKind::invalid_argument,
                "PowerSgd: the tensors with the prefix '" + prefix + "' are not a complete saved state");
  }
  random_.seed(random_seed_);
  random_.discard(static_cast<unsigned long long>(loaded.random_draws));
  counters = loaded;
  errors = std::move(loaded_errors);
  qs = std::move(loaded_qs);
  is_loaded = true;
}

}  // namespace lockstep::internal
