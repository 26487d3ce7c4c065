#include "tests/graphs/shrink.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace lockstep::testing {

namespace {

using Variants = std::vector<Case>;

template <class Change>
void add(Variants& variants, const Case& one, Change change) {
  Case other = one;
  if (!change(other)) return;
  compact(other.graph);
  variants.push_back(std::move(other));
}

template <class T>
bool set(T& value, T to) {
  return std::exchange(value, to) != to;
}

void leave_out_steps(Variants& variants, const Case& one) {
  const auto count = static_cast<std::ptrdiff_t>(one.schedule.size());
  for (std::ptrdiff_t length = count / 2; length >= 1; length /= 2) {
    for (std::ptrdiff_t first = 0; first + length <= count; first += length) {
      add(variants, one, [&](Case& other) {
        other.schedule.erase(other.schedule.begin() + first, other.schedule.begin() + first + length);
        return !other.schedule.empty();
      });
    }
  }
}

void leave_out_operations(Variants& variants, const Case& one) {
  for (std::size_t i = 0; i < one.graph.ops.size(); ++i) {
    add(variants, one, [&](Case& other) {
      other.graph.ops.erase(other.graph.ops.begin() + static_cast<std::ptrdiff_t>(i));
      // Something must be left to train.
      return std::any_of(other.graph.ops.begin(), other.graph.ops.end(), [](const Op& op) {
        return op.kind != OpKind::fuse && op.kind != OpKind::idle && op.use == Use::always;
      });
    });
  }
}

void make_plainer(Variants& variants, const Case& one) {
  const auto mode = [&](auto change) { add(variants, one, [&](Case& other) { return change(other.mode); }); };
  const auto graph = [&](auto change) { add(variants, one, [&](Case& other) { return change(other.graph); }); };
  mode([](Mode& m) { return set(m.hook, Hook::none); });
  mode([](Mode& m) { return set(m.samples, false); });
  mode([](Mode& m) { return set(m.skips_non_finite, false); });
  mode([](Mode& m) { return set(m.skip_unused, false); });
  mode([](Mode& m) { return set(m.reduces_wide, false); });
  mode([](Mode& m) { return set(m.cap_mb, 0.0); });
  mode([](Mode& m) { return set(m.buckets_off, false); });
  mode([](Mode& m) { return set(m.over_links, false); });
  mode([](Mode& m) { return m.shards > 1 && m.ranks > 1 && set(m.ranks, m.ranks / 2); });
  mode([](Mode& m) { return m.shards == 0 && set(m.ranks, 2); });
  mode([](Mode& m) { return m.shards > m.ranks && set(m.shards, m.shards / 2); });
  graph([](Graph& g) { return set(g.more_outputs, 0); });
  graph([](Graph& g) { return set(g.outputs_are_views, false); });
  graph([](Graph& g) { return set(g.auxiliary, false); });
  graph([](Graph& g) { return set(g.loss_uses_parameter, false); });
  for (std::size_t i = 0; i < one.graph.ops.size(); ++i) {
    graph([&](Graph& g) { return set(g.ops[i].other, -1); });
    graph([&](Graph& g) { return set(g.ops[i].use, Use::always); });
  }
  for (std::size_t i = 0; i < one.graph.parameters.size(); ++i) {
    graph([&](Graph& g) { return set(g.parameters[i].twice, false); });
    graph([&](Graph& g) { return set(g.parameters[i].layout, Layout::contiguous); });
  }
  for (std::size_t i = 0; i < one.schedule.size(); ++i) {
    const auto step = [&](auto change) { add(variants, one, [&](Case& other) { return change(other.schedule[i]); }); };
    step([](TrainingStep& s) { return set(s.changes_output, false); });
    step([](TrainingStep& s) { return set(s.zero, Zero::to_none); });
    step([](TrainingStep& s) { return set(s.times, 1); });
    step([](TrainingStep& s) { return set(s.choice, 0); });
    step([](TrainingStep& s) { return set(s.optimizes, false); });
    step([](TrainingStep& s) { return s.kind != StepKind::sharded && set(s.kind, StepKind::plain); });
  }
}

}  // namespace

Shrunk shrink(Case one, std::string failure, const std::function<std::optional<std::string>(const Case&)>& check,
              int most_tries) {
  Shrunk shrunk{.one = std::move(one), .failure = std::move(failure)};
  for (bool smaller = true; smaller && shrunk.tries < most_tries;) {
    smaller = false;
    Variants variants;
    leave_out_steps(variants, shrunk.one);
    leave_out_operations(variants, shrunk.one);
    make_plainer(variants, shrunk.one);
    for (Case& variant : variants) {
      if (shrunk.tries >= most_tries) break;
      ++shrunk.tries;
      std::optional<std::string> text;
      try {
        text = check(variant);
      } catch (const std::logic_error&) {
      }
      if (!text) continue;
      shrunk.one = std::move(variant);
      shrunk.failure = *std::move(text);
      smaller = true;
      break;
    }
  }
  return shrunk;
}

}  // namespace lockstep::testing
