#include "tests/graphs/generate.h"

#include <algorithm>
#include <vector>

#include "tests/graphs/dice.h"

namespace lockstep::testing {

namespace {

constexpr std::int64_t kLarge = 16384;  // floats, from which on gradients are reduced where they lie

bool any_of(const Graph& graph, std::initializer_list<OpKind> kinds) {
  return std::any_of(kinds.begin(), kinds.end(), [&](OpKind kind) { return has(graph, kind); });
}

// Gradients of several parameters are one memory, to which autograd itself adds twice if it adds at all.
bool shares_gradients(const Graph& graph) {
  return any_of(graph, {OpKind::sum_of_views, OpKind::saved_view, OpKind::stacked});
}

bool depends_on_rank(const Graph& graph) {
  return std::any_of(graph.ops.begin(), graph.ops.end(),
                     [](const Op& op) { return op.use == Use::one_rank || op.use == Use::changing; });
}

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : dice_(seed) { case_.seed = seed; }

  Case run() {
    choose_mode();
    choose_graph();
    choose_schedule();
    compact(case_.graph);
    return std::move(case_);
  }

 private:
  void choose_mode() {
    Mode& mode = case_.mode;
    const int among = dice_.below(100);
    mode.ranks = among < 8 ? 1 : among < 60 ? 2 : among < 80 ? 3 : 4;
    mode.over_links = dice_.percent(25);
    mode.buckets_off = dice_.percent(30);
    if (!mode.buckets_off && dice_.percent(40)) mode.cap_mb = dice_.percent(50) ? 0.001 : 0.1;
    const int family = dice_.below(100);
    if (family < 40) {
      const int hook = dice_.below(10);
      if (hook < 2) mode.hook = hook == 0 ? Hook::all_reduce : Hook::keeping;
    } else if (family < 54) {
      mode.find_unused = true;
      mode.skip_unused = dice_.percent(40);
    } else if (family < 62) {
      mode.static_graph = true;
    } else if (family < 72) {
      mode.samples = true;
    } else if (family < 84) {
      mode.mixed = true;
      mode.reduces_wide = dice_.percent(40);
    } else if (family < 88) {
      mode.skips_non_finite = true;
    } else if (family < 92) {
      mode.sync_norm = true;
    } else if (family < 94) {
      mode.divides_by_active = true;
    } else {
      mode.buckets_off = false;
      mode.cap_mb = 0;
      mode.shards = 2 << dice_.below(3);
      mode.ranks = std::min(1 << dice_.below(3), mode.shards);
    }
  }

  int parameter(std::vector<std::int64_t> sizes, at::ScalarType dtype = at::kFloat) {
    ParameterSpec spec{.sizes = std::move(sizes), .dtype = dtype};
    if (spec.sizes.size() == 2 && dtype != at::kComplexFloat && dice_.percent(15)) spec.layout = Layout::transposed;
    if (spec.sizes.size() == 4 && dice_.percent(40)) spec.layout = Layout::channels_last;
    spec.twice = dice_.percent(7);
    case_.graph.parameters.push_back(std::move(spec));
    return static_cast<int>(case_.graph.parameters.size()) - 1;
  }

  bool allowed(OpKind kind) const {
    const Mode& mode = case_.mode;
    switch (kind) {
      case OpKind::norm: return !mode.mixed && !mode.samples && !mode.skips_non_finite && case_.graph.rows > 1;
      case OpKind::recomputed: return !mode.find_unused;
      case OpKind::convolution: return !mode.mixed;
      case OpKind::idle: return mode.find_unused || mode.static_graph || mode.shards != 0;
      default: return true;
    }
  }

  void choose_graph() {
    Graph& graph = case_.graph;
    graph.rows = 1 + dice_.below(4);
    if (case_.mode.sync_norm) graph.rows = 2 + dice_.below(3);
    graph.more_outputs = dice_.percent(40) ? 1 + dice_.below(3) : 0;
    graph.outputs_are_views = dice_.percent(30);
    graph.auxiliary = dice_.percent(15) && !case_.mode.skip_unused && !case_.mode.find_unused;
    const int count = 1 + dice_.below(6);
    for (int i = 0; i < count; ++i) {
      const auto kind = static_cast<OpKind>(dice_.below(static_cast<int>(OpKind::idle) + 1));
      if (allowed(kind)) add(kind);
    }
    if (case_.mode.sync_norm && !has(graph, OpKind::norm)) add(OpKind::norm);
    if (dice_.percent(15)) {  // what comes behind it has its gradients when backward throws
      const auto place = graph.ops.begin() + dice_.below(static_cast<int>(graph.ops.size()) + 1);
      graph.ops.insert(place, Op{.kind = OpKind::fuse});
    }
    // The first one always takes part, so there is something to train.
    Op first{.kind = OpKind::linear, .parameters = {parameter({kWidth, kWidth}), parameter({kWidth})}};
    if (graph.ops.empty() || dice_.percent(50) || conditional()) graph.ops.insert(graph.ops.begin(), first);
    const OpKind kind = graph.ops.front().kind;
    if (kind == OpKind::fuse || kind == OpKind::idle) graph.ops.insert(graph.ops.begin(), first);
    if (conditional()) choose_uses();
    graph.loss_uses_parameter = dice_.percent(12) && !case_.mode.mixed && !conditional() &&
                                !any_of(graph, {OpKind::embedding, OpKind::recomputed});
  }

  bool conditional() const { return case_.mode.find_unused || case_.mode.static_graph || case_.mode.shards != 0; }

  void choose_uses() {
    for (std::size_t i = 1; i < case_.graph.ops.size(); ++i) {
      Op& op = case_.graph.ops[i];
      if (op.kind == OpKind::norm || !dice_.percent(35)) continue;
      op.use = case_.mode.static_graph ? Use::one_rank : static_cast<Use>(1 + dice_.below(3));
    }
  }

  std::int64_t columns() { return dice_.percent(30) ? kLarge / kWidth + 8 * dice_.below(20) : 4 + dice_.below(6); }

  void add(OpKind kind) {
    Op op{.kind = kind, .choice = dice_.below(12)};
    if (dice_.percent(25)) op.other = dice_.below(5);
    const std::int64_t m = columns(), w = kWidth;
    switch (kind) {
      case OpKind::linear:
        if (const Op* other = earlier(kind); other != nullptr && dice_.percent(40)) {
          op.parameters = other->parameters;
        } else {
          op.parameters = {parameter({w, w}), parameter({w})};
        }
        break;
      case OpKind::in_place: op.parameters = {parameter({w, w}), parameter({w})}; break;
      case OpKind::recomputed: op.parameters = {unshared({w, w}), unshared({w})}; break;
      case OpKind::wide: op.parameters = {parameter({m, w}), parameter({w, m})}; break;
      case OpKind::sum_of_views:
      case OpKind::saved_view:
        op.parameters = pair(m);
        // Autograd adds in the memory of blobs, which two forwards of one parameter would share, but not those by hand.
        if (case_.mode.mixed) op.choice &= ~1;
        break;
      case OpKind::same_gradient: {
        const int first = parameter({w, m}), second = parameter({w, m});
        op.parameters = {first, second};
        break;
      }
      case OpKind::position: {
        const std::int64_t wide = m < 100 ? m : kLarge / case_.graph.rows + 8;
        op.parameters = {parameter({w, wide}), parameter({case_.graph.rows * wide}), parameter({wide, w})};
        break;
      }
      case OpKind::scalars: op.parameters = {parameter({}), parameter({1})}; break;
      case OpKind::convolution: op.parameters = {parameter({2, 2, 3, 3})}; break;
      case OpKind::embedding: embedding(op); break;
      case OpKind::picks: op.parameters = {parameter({kVocabulary, w})}; break;
      case OpKind::other_type:
        op.parameters = {parameter({w, w}, dice_.percent(50) ? at::kDouble : at::kBFloat16)};
        break;
      case OpKind::complex: op.parameters = {parameter({w, w}, at::kComplexFloat)}; break;
      case OpKind::stacked: op.parameters = {parameter({w}), parameter({w})}; break;
      case OpKind::cube: op.parameters = {dice_.percent(50) ? parameter({2, w, w}) : parameter({2, 4, 2, 8})}; break;
      case OpKind::chunks:
      case OpKind::undefined: op.parameters = {parameter({w})}; break;
      case OpKind::expanded:
      case OpKind::idle: op.parameters = {parameter({1, w})}; break;
      case OpKind::norm: op.parameters = {unshared({w}), unshared({w})}; break;
      case OpKind::fuse: break;
    }
    case_.graph.ops.push_back(std::move(op));
  }

  // Two parameters of w * m elements each, in any shape.
  std::vector<int> pair(std::int64_t m) {
    const auto sizes = [&]() -> std::vector<std::int64_t> {
      return dice_.percent(50) ? std::vector<std::int64_t>{kWidth * m} : std::vector<std::int64_t>{m, kWidth};
    };
    std::vector<int> two;
    for (int i = 0; i < 2; ++i) {
      two.push_back(parameter(sizes()));
      case_.graph.parameters.back().layout = Layout::contiguous;
    }
    return two;
  }

  int unshared(std::vector<std::int64_t> sizes) {
    const int number = parameter(std::move(sizes));
    case_.graph.parameters.back() = {.sizes = case_.graph.parameters.back().sizes};
    return number;
  }

  void embedding(Op& op) {
    const Mode& mode = case_.mode;
    const bool sparse = dice_.percent(40) && mode.ranks > 1 && !mode.mixed && mode.shards == 0 &&
                        mode.hook == Hook::none && !mode.find_unused && !mode.samples && !mode.skips_non_finite;
    op.parameters = {unshared({kVocabulary, kWidth})};
    op.choice = sparse ? 1 : 0;
    case_.graph.parameters.back().sparse = sparse;
  }

  const Op* earlier(OpKind kind) const {
    for (const Op& op : case_.graph.ops) {
      if (op.kind == kind) return &op;
    }
    return nullptr;
  }

  bool allowed(StepKind kind) const {
    const Mode& mode = case_.mode;
    const Graph& graph = case_.graph;
    if (mode.shards != 0) return kind == StepKind::sharded;
    if (kind == StepKind::sharded) return false;
    // A recomputed parameter has a gradient for each forward, not for each backward.
    const bool recomputes = has(graph, OpKind::recomputed);
    const bool adds_twice = mode.ranks == 1 && shares_gradients(graph);
    switch (kind) {
      case StepKind::accumulate: return !adds_twice;
      case StepKind::skip: return has(graph, OpKind::fuse) && !depends_on_rank(graph) && !mode.sync_norm;
      case StepKind::two_forwards: return !recomputes;
      case StepKind::two_backwards: return !mode.samples && !adds_twice;
      case StepKind::crossed: return !recomputes && !adds_twice;
      case StepKind::retained: return !mode.samples && !adds_twice;
      case StepKind::penalty: return !recomputes && !has(graph, OpKind::embedding) && !mode.sync_norm;
      // A backward inside autograd::grad() would leave gradients.
      case StepKind::attack: return !mode.sync_norm && !recomputes;
      case StepKind::bare: return !shares_gradients(graph) && !mode.sync_norm && !has(graph, OpKind::norm);
      case StepKind::poisoned: return mode.skips_non_finite;
      case StepKind::uneven:
        return mode.divides_by_active || (!conditional() && !mode.samples && !mode.mixed && !mode.sync_norm &&
                                          !has(graph, OpKind::norm) && !mode.skips_non_finite);
      default: return true;
    }
  }

  void choose_schedule() {
    const int count = 2 + dice_.below(4);
    while (static_cast<int>(case_.schedule.size()) < count) {
      TrainingStep step{.kind = StepKind::plain};
      if (case_.mode.shards != 0) step.kind = StepKind::sharded;
      if (dice_.percent(75)) step.kind = static_cast<StepKind>(dice_.below(static_cast<int>(StepKind::sharded) + 1));
      if (has(case_.graph, OpKind::fuse) && dice_.percent(25)) step.kind = StepKind::skip;
      if (!allowed(step.kind)) continue;
      step.choice = dice_.below(8);
      step.times = 1 + dice_.below(3);
      step.optimizes = dice_.percent(80);
      step.changes_output = dice_.percent(20);
      step.zero = static_cast<Zero>(dice_.below(3));
      restrict(step);
      case_.schedule.push_back(step);
    }
  }

  void restrict(TrainingStep& step) {
    const Mode& mode = case_.mode;
    if (mode.ranks == 1 && shares_gradients(case_.graph)) step.zero = Zero::to_none;
    if (mode.samples && step.zero == Zero::not_at_all) step.zero = Zero::to_zeros;
    if (mode.shards != 0 && shares_gradients(case_.graph)) step.times = 1;
    if (step.kind != StepKind::bare) return;
    // While an output is kept whose backward has not been, a backward beside it is refused.
    if (!case_.schedule.empty() && case_.schedule.back().kind == StepKind::dropped_forward) {
      case_.schedule.back().choice &= ~1;
    }
    // Whether gradients of the module itself count as use is not said.
    if (conditional() || mode.samples) step.choice &= ~2;
  }

  Dice dice_;
  Case case_;
};

}  // namespace

Case generate(std::uint64_t seed) { return Generator(seed).run(); }

}  // namespace lockstep::testing
