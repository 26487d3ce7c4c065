#include "tests/graphs/reference.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "lockstep/comm/group/vector_kernels.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing {

namespace {

using Rows = std::vector<Meeting::Tensors>;

// All ranks' rows of a batch. Each rank's gradient is the sum over the ranks of what they have for its rows.
struct GatherRows : torch::autograd::Function<GatherRows> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, Meeting* meeting,
                            std::int64_t rank) {
    context->saved_data["meeting"] = reinterpret_cast<std::int64_t>(meeting);
    context->saved_data["rank"] = rank;
    std::vector<at::Tensor> parts;
    std::int64_t first = 0;
    for (const auto& theirs : meeting->exchange(static_cast<int>(rank), {x})) {
      if (static_cast<std::int64_t>(parts.size()) < rank) first += theirs[0].size(0);
      parts.push_back(theirs[0]);
    }
    context->saved_data["first"] = first;
    context->saved_data["rows"] = x.size(0);
    return at::cat(parts);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto& data = context->saved_data;
    auto* meeting = reinterpret_cast<Meeting*>(data["meeting"].toInt());
    at::Tensor sum;
    for (const auto& theirs : meeting->exchange(static_cast<int>(data["rank"].toInt()), {gradients[0]})) {
      sum = sum.defined() ? sum + theirs[0] : theirs[0];
    }
    return {sum.narrow(0, data["first"].toInt(), data["rows"].toInt()), at::Tensor(), at::Tensor()};
  }
};

bool is_finite(const at::Tensor& values) {
  if (!values.defined()) return true;
  return at::isfinite(values.is_sparse() ? values.coalesce().values() : values).all().item<bool>();
}

class ByHand final : public Side {
 public:
  ByHand(const Case& one, int rank, Meeting& meeting) : one_(one), rank_(rank), meeting_(meeting) {
    tensors_.parameters = initial_parameters(one.graph, one.seed);
    tensors_.statistics = initial_statistics(one.graph);
    used_.resize(tensors_.parameters.size());
    for (at::Tensor& parameter : tensors_.parameters) parameter.requires_grad_();
    if (one.mode.sync_norm) {
      tensors_.norm = [this](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& mean, const at::Tensor& variance,
                             bool training) { return synchronised_norm(x, weight, bias, mean, variance, training); };
    }
  }

  int rank() const override { return rank_; }
  int ranks() const override { return one_.mode.ranks; }
  std::vector<at::Tensor> parameters() const override { return tensors_.parameters; }
  std::vector<at::Tensor> statistics() const override { return tensors_.statistics; }
  void train(bool on) override { training_ = on; }
  void reload() override {}

  Forwarded forward(const at::Tensor& x, const Call& call) override {
    const bool synchronised = synchronise_ && at::GradMode::is_enabled() && one_.mode.shards == 0;
    if (synchronise_ && one_.mode.shards == 0 && (training_ || !statistics_are_same_)) share_statistics();
    Tensors used = tensors_;
    Leaves leaves;
    at::Tensor input = x;
    if (one_.mode.mixed) {
      leaves = std::make_shared<std::vector<at::Tensor>>();
      for (at::Tensor& parameter : used.parameters) {
        if (!parameter.is_floating_point()) continue;
        parameter = parameter.detach().to(at::kBFloat16).requires_grad_();
      }
      *leaves = used.parameters;
      input = x.to(at::kBFloat16);
    }
    Computed computed = compute(one_.graph, used, input, call, training_);
    if (training_ && (synchronise_ || is_in_join_)) had_joined_ = joined_;
    return {.result = computed.result,
            .auxiliary = computed.auxiliary,
            .parameters = used.parameters,
            .weight = static_cast<double>(x.size(0)),
            .synchronised = synchronised,
            .leaves = leaves};
  }

  Forwarded bare_forward(const at::Tensor& x, const Call& call) override {
    Computed computed = compute(one_.graph, tensors_, x, call, training_);
    return {.result = computed.result,
            .auxiliary = computed.auxiliary,
            .parameters = tensors_.parameters,
            .weight = static_cast<double>(x.size(0)),
            .bare = true};
  }

  void without_sync(const std::function<void()>& body) override {
    const bool before = std::exchange(synchronise_, false);
    body();
    synchronise_ = before;
  }

  void backward(const at::Tensor& loss, const std::vector<const Forwarded*>& through, bool retain) override {
    // Each backward's gradients are taken alone, so that none shares memory with another parameter's.
    auto& parameters = tensors_.parameters;
    std::vector<at::Tensor> before;
    for (const at::Tensor& parameter : parameters) before.push_back(std::exchange(parameter.mutable_grad(), {}));
    const bool bare = std::all_of(through.begin(), through.end(), [](const auto* one) { return one->bare; });
    const auto restore = [&](double scale) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        at::Tensor mine = std::exchange(parameters[i].mutable_grad(), before[i]);
        if (!mine.defined()) continue;
        if (!bare) used_[i] = true;
        add(parameters[i].mutable_grad(), scale == 1 ? mine : mine.mul(scale));
      }
      collect_leaves(through);
    };
    double weight = 0;
    for (const Forwarded* forwarded : through) weight += forwarded->weight;
    try {
      torch::autograd::backward({loss}, {}, retain);
    } catch (...) {
      restore(1);
      throw;
    }
    const bool weighs = one_.mode.samples && !bare;
    restore(weighs ? weight : 1);
    weight_ += weighs ? weight : 0;
    if (std::any_of(through.begin(), through.end(), [](const auto* one) { return one->synchronised; })) synchronise();
  }

  void join(int mine, const std::function<void(const Batch&)>& step) override {
    int most = 0;
    for (const auto& theirs : meeting_.exchange(rank_, {at::scalar_tensor(mine, at::kInt)})) {
      most = std::max(most, theirs[0].item<int>());
    }
    is_in_join_ = true;
    for (int i = 0; i < most; ++i) {
      joined_ = i >= mine;
      step({.part = std::min(i, mine - 1), .rank = rank_});
    }
    joined_ = is_in_join_ = false;
  }

  double for_each_shard(const std::function<double(const Batch&)>& body) override {
    const auto statistics = copies_of(tensors_.statistics);
    std::vector<std::vector<at::Tensor>> gradients(tensors_.parameters.size()), changed(statistics.size());
    std::vector<at::Tensor> losses;
    for (int shard = 0; shard < one_.mode.shards; ++shard) {
      for (std::size_t i = 0; i < statistics.size(); ++i) put(statistics[i], tensors_.statistics[i]);
      for (const at::Tensor& parameter : tensors_.parameters) parameter.mutable_grad().reset();
      losses.push_back(at::scalar_tensor(body({.rank = shard}), at::kDouble));
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        gradients[i].push_back(std::exchange(tensors_.parameters[i].mutable_grad(), {}));
      }
      for (std::size_t i = 0; i < changed.size(); ++i) changed[i].push_back(tensors_.statistics[i].clone());
    }
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      tensors_.parameters[i].mutable_grad() = mean_in_tree(filled(gradients[i], tensors_.parameters[i]));
    }
    for (std::size_t i = 0; i < changed.size(); ++i) put(mean_in_tree(changed[i]), tensors_.statistics[i]);
    return mean_in_tree(losses).item<double>();
  }

 private:
  static std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
    return copies;
  }

  // Autograd does not see it: statistics that a forward has read may change before its backward.
  static void put(const at::Tensor& from, const at::Tensor& to) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  }

  static void add(at::Tensor& to, const at::Tensor& what) {
    const at::NoGradGuard no_grad;
    if (!to.defined()) {
      to = what.resolve_conj().resolve_neg().clone();
    } else if (to.is_sparse() && !what.is_sparse()) {
      to = what + to;
    } else {
      to = to + what;
    }
  }

  // Those of forwards in lower precision go to the parameters, in their type. What one backward has of several forwards
  // is added up in the lower type, as autograd does it for a parameter that all of them use.
  void collect_leaves(const std::vector<const Forwarded*>& through) {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < used_.size(); ++i) {
      at::Tensor sum;
      for (const Forwarded* forwarded : through) {
        if (forwarded->leaves == nullptr) continue;
        const at::Tensor& leaf = (*forwarded->leaves)[i];
        if (leaf.is_same(tensors_.parameters[i]) || !leaf.grad().defined()) continue;
        const at::Tensor mine = std::exchange(leaf.mutable_grad(), {});
        sum = sum.defined() ? sum + mine : mine;
      }
      if (!sum.defined()) continue;
      used_[i] = true;
      add(tensors_.parameters[i].mutable_grad(), sum.to(tensors_.parameters[i].scalar_type()));
    }
  }

  // A shard or rank without a gradient counts as zero; no gradient at all stays none.
  static std::vector<at::Tensor> filled(std::vector<at::Tensor> rows, const at::Tensor& parameter) {
    if (std::none_of(rows.begin(), rows.end(), [](const at::Tensor& row) { return row.defined(); })) return {};
    for (at::Tensor& row : rows) {
      if (!row.defined()) row = at::zeros_like(parameter);
    }
    return rows;
  }

  void share_statistics() {
    if (tensors_.statistics.empty() || ranks() == 1) return;
    std::vector<at::Tensor> mine = copies_of(tensors_.statistics);
    mine.push_back(at::scalar_tensor(joined_ || had_joined_, at::kBool));
    const Rows rows = meeting_.exchange(rank_, std::move(mine));
    // Those of the lowest rank that has a batch, and had one in the last forward.
    const auto has_batches = [](const auto& row) { return !row.back().template item<bool>(); };
    const auto first = std::find_if(rows.begin(), rows.end(), has_batches);
    const auto& from = first == rows.end() ? rows.front() : *first;
    for (std::size_t i = 0; i < tensors_.statistics.size(); ++i) put(from[i], tensors_.statistics[i]);
    statistics_are_same_ = !training_;
  }

  at::Tensor synchronised_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                               const at::Tensor& mean, const at::Tensor& variance, bool training) {
    if (!training) return plain_norm(x, weight, bias, mean, variance, false);
    const at::Tensor all = GatherRows::apply(x, &meeting_, static_cast<std::int64_t>(rank_));
    std::int64_t first = 0;
    const Rows rows = meeting_.exchange(rank_, {at::scalar_tensor(x.size(0), at::kLong)});
    for (int rank = 0; rank < rank_; ++rank) first += rows[static_cast<std::size_t>(rank)][0].item<std::int64_t>();
    return plain_norm(all, weight, bias, mean, variance, true).narrow(0, first, x.size(0));
  }

  // What backward() of a synchronised forward does in the end.
  void synchronise() {
    const std::size_t count = tensors_.parameters.size();
    Meeting::Tensors mine;
    for (std::size_t i = 0; i < count; ++i) {
      const at::Tensor& gradient = tensors_.parameters[i].grad();
      mine.push_back(joined_ ? at::Tensor() : gradient);
      mine.push_back(at::scalar_tensor(used_[i] && !joined_, at::kBool));
    }
    const bool finite = std::all_of(tensors_.parameters.begin(), tensors_.parameters.end(),
                                    [](const at::Tensor& parameter) { return is_finite(parameter.grad()); });
    mine.push_back(at::scalar_tensor(finite, at::kBool));
    mine.push_back(at::scalar_tensor(weight_, at::kDouble));
    mine.push_back(at::scalar_tensor(!joined_, at::kBool));
    const Rows rows = meeting_.exchange(rank_, std::move(mine));
    double weight = 0, active = 0;
    bool all_finite = true;
    for (const auto& row : rows) {
      all_finite = all_finite && row[2 * count].item<bool>();
      weight += row[2 * count + 1].item<double>();
      active += row[2 * count + 2].item<bool>() ? 1 : 0;
    }
    const double factor = one_.mode.samples ? ranks() / weight : one_.mode.divides_by_active ? ranks() / active : 1;
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < count; ++i) average(i, rows, factor);
    used_.assign(count, false);
    weight_ = 0;
    if (all_finite || !one_.mode.skips_non_finite) return;
    for (const at::Tensor& parameter : tensors_.parameters) parameter.mutable_grad().reset();
  }

  void average(std::size_t i, const Rows& rows, double factor) {
    const at::Tensor& parameter = tensors_.parameters[i];
    const bool may_stay = one_.mode.find_unused || one_.mode.static_graph;
    std::vector<at::Tensor> gradients;
    bool used = false;
    for (const auto& row : rows) {
      gradients.push_back(row[2 * i]);
      used = used || row[2 * i + 1].item<bool>();
    }
    if (may_stay && !used) return;
    if (one_.graph.parameters[i].sparse) {
      parameter.mutable_grad() = sparse_mean(gradients, parameter, factor);
      return;
    }
    gradients = filled(std::move(gradients), parameter);
    if (gradients.empty()) return;
    if (one_.mode.mixed && parameter.is_floating_point()) {
      for (at::Tensor& gradient : gradients) {
        gradient = gradient.to(one_.mode.reduces_wide ? at::kFloat : at::kBFloat16);
      }
    }
    // In the parameter's layout, as autograd has it: the bits of an optimizer's step in bfloat16 depend on it.
    const at::Tensor mean = at::empty_like(parameter).copy_(mean_in_order(gradients));
    parameter.mutable_grad() = factor == 1 ? mean : mean.mul(factor);
  }

  at::Tensor sparse_mean(const std::vector<at::Tensor>& rows, const at::Tensor& parameter, double factor) const {
    at::Tensor sum;
    for (const at::Tensor& row : rows) {
      if (!row.defined()) continue;
      sum = sum.defined() ? sum.add(row.coalesce()).coalesce() : row.coalesce();
    }
    if (!sum.defined()) return parameter.grad();
    sum = sum.clone().coalesce();
    sum._values().mul_(factor / ranks());
    return sum;
  }

  const Case& one_;
  const int rank_;
  Meeting& meeting_;
  Tensors tensors_;
  std::vector<bool> used_;  // since the last synchronisation
  double weight_ = 0;
  bool synchronise_ = true;
  bool training_ = true;
  bool is_in_join_ = false, joined_ = false;
  bool had_joined_ = false;  // in the last forward that counts for buffers
  bool statistics_are_same_ = true;
};

}  // namespace

std::vector<Meeting::Tensors> Meeting::exchange(int rank, Tensors mine) {
  std::unique_lock lock(mutex_);
  given_[static_cast<std::size_t>(rank)] = std::move(mine);
  const int round = round_;
  if (++came_ == ranks_) {
    came_ = 0;
    ++round_;
    taken_ = given_;
    all_came_.notify_all();
  } else {
    const bool came = all_came_.wait_for(lock, std::chrono::minutes(1), [&] { return left_ || round_ != round; });
    if (!came || round_ == round) throw std::runtime_error("by hand: not all ranks came to an exchange");
  }
  return taken_;
}

void Meeting::leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  all_came_.notify_all();
}

at::Tensor mean_in_order(const std::vector<at::Tensor>& rows) {
  const at::ScalarType type = rows[0].scalar_type();
  const bool is_short = type == at::kBFloat16 || type == at::kHalf;
  const auto wide = [&](const at::Tensor& row) {
    if (row.is_complex()) return at::view_as_real(row.resolve_conj().resolve_neg().contiguous());
    return is_short ? row.to(at::kFloat) : row.contiguous();
  };
  at::Tensor sum = wide(rows[0]);
  for (std::size_t i = 1; i < rows.size(); ++i) sum = sum + wide(rows[i]);
  sum = sum / at::full_like(sum, static_cast<double>(rows.size()));
  return rows[0].is_complex() ? at::view_as_complex(sum) : sum.to(type);
}

at::Tensor mean_in_tree(std::vector<at::Tensor> rows) {
  if (rows.empty()) return {};
  while (rows.size() > 1) {
    std::vector<at::Tensor> means;
    for (std::size_t i = 0; i < rows.size(); i += 2) means.push_back(mean_in_order({rows[i], rows[i + 1]}));
    rows = std::move(means);
  }
  return rows[0];
}

std::vector<Trace> run_by_hand(const Case& one) {
  // In lockstep mode all ranks have what one has that computes all shards.
  const int threads = one.mode.shards != 0 ? 1 : one.mode.ranks;
  internal::choose_vector_kernels();
  std::vector<Trace> traces(static_cast<std::size_t>(threads));
  Meeting meeting(threads);
  run_ranks_or_throw(threads, [&](int rank) {
    try {
      ByHand side(one, rank, meeting);
      traces[static_cast<std::size_t>(rank)] =
          play({one.graph, one.schedule, one.seed, one.mode.samples, one.mode.shards}, side);
    } catch (...) {
      meeting.leave();
      throw;
    }
  });
  while (static_cast<int>(traces.size()) < one.mode.ranks) traces.push_back(traces[0]);
  return traces;
}

}  // namespace lockstep::testing
