// Random calls in which ranks go astray: they call something else, do not come, leave, or first come with arguments
// that are refused.
#pragma once

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/contract/engine/cases.h"

namespace lockstep::testing {

using namespace internal;

// What the call of all ranks ends in.
enum class Ending { success, desync, absence, departure };

// One call of all ranks.
struct Step {
  Ending ending = Ending::success;
  std::vector<Case> calls;    // by rank
  std::vector<bool> refused;  // by rank: whether it comes with wrong arguments first
  std::set<int> astray;       // who calls something else, does not come, or leaves
};

inline bool differ(const Case& a, const Case& b) {
  const auto signature = [](const Case& c) {
    return signature_of(
        {.kind = c.kind, .reduce = c.reduce, .dtype = c.dtype, .root = c.root, .count = c.count, .name = c.name}, 0, 0);
  };
  return signature(a) != signature(b);
}

// Of sizes that take every way through an engine, but seldom large: what costs time here is to make engines.
inline Case modest_case(std::mt19937& random, int ranks, int seed) {
  Case made = random_case(random, ranks, seed);
  made.count %= 30'000;
  for (std::uint64_t& count : made.counts) count %= 10'000;
  return made;
}

// A call that engines must tell from this one.
inline Case another_case(std::mt19937& random, const Case& c, int ranks) {
  for (;;) {
    Case other = c;
    switch (random() % 7) {
      case 0: other = modest_case(random, ranks, c.seed); break;  // as if it had skipped some
      case 1:
        if (c.kind != OpKind::barrier && c.kind != OpKind::all_to_all) other.count = random_count(random);
        break;
      case 2: other.dtype = static_cast<DType>(random() % (static_cast<unsigned>(DType::opaque) + 1)); break;
      case 3: other.reduce = kReductions[random() % std::size(kReductions)]; break;
      case 4: other.root = static_cast<int>(random() % static_cast<unsigned>(ranks)); break;
      case 5: other.name = random(); break;
      case 6: {
        const auto kind = static_cast<OpKind>(random() % std::size(kOpTable));
        if (kind != OpKind::barrier && kind != OpKind::all_to_all && c.kind != OpKind::all_to_all) other.kind = kind;
        break;
      }
    }
    if (supports(other.kind, other.reduce, other.dtype) && differ(c, other)) return other;
  }
}

inline Step random_step(std::mt19937& random, int ranks, int seed) {
  const auto n = static_cast<unsigned>(ranks);
  Step step;
  const Case common = modest_case(random, ranks, seed);
  step.calls.assign(n, common);
  const bool any_refused = random() % 4 == 0;
  for (int rank = 0; rank < ranks; ++rank) step.refused.push_back(any_refused && random() % 2 == 0);
  if (ranks == 1 || random() % 4 != 0) return step;
  const unsigned fate = random() % 16;
  step.ending = fate == 0 ? Ending::absence : fate == 1 ? Ending::departure : Ending::desync;
  const unsigned many = random() % 2 == 0 ? 1 : random() % (n - 1) + 1;
  while (step.astray.size() < many) step.astray.insert(static_cast<int>(random() % n));
  if (step.ending != Ending::desync) return step;
  Case other = another_case(random, common, ranks);
  for (const int rank : step.astray) {
    step.calls[static_cast<std::size_t>(rank)] = other;
    if (random() % 2 == 0) other = another_case(random, common, ranks);
  }
  return step;
}

// Makes arguments wrong in a way that an engine must see by itself.
inline void spoil(Collective& collective, std::vector<Segment>& output, std::mt19937& own, int ranks) {
  output.assign(collective.output.begin(), collective.output.end());
  switch (own() % 6) {
    case 0: collective.count = ~std::uint64_t{0}; return;
    case 1: collective.kind = static_cast<OpKind>(99); return;
    case 2: output.push_back({nullptr, element_size(collective.dtype)}); break;
    case 3:
      if (collective.kind == OpKind::broadcast || collective.kind == OpKind::gather) {
        collective.root = own() % 2 == 0 ? -1 : ranks;
        return;
      }
      [[fallthrough]];
    case 4:
      if (collective.kind != OpKind::barrier) {
        collective.dtype = traits_of(collective.kind).reduces ? DType::opaque : static_cast<DType>(99);
        return;
      }
      [[fallthrough]];
    default: ++collective.count; return;
  }
  collective.output = output;
}

// Whether a text of Error{desync} shows what two ranks that disagree are in.
inline bool shows_both_sides(const std::string& text, const Step& step, std::uint64_t sequence) {
  const auto side = [&](std::size_t rank) {
    const Case& c = step.calls[rank];
    const Collective collective{
        .kind = c.kind, .reduce = c.reduce, .dtype = c.dtype, .root = c.root, .count = c.count, .name = c.name};
    return "rank " + std::to_string(rank) + " in " + describe(signature_of(collective, sequence, 0));
  };
  for (std::size_t a = 0; a < step.calls.size(); ++a) {
    for (std::size_t b = 0; b < step.calls.size(); ++b) {
      if (!differ(step.calls[a], step.calls[b])) continue;
      if (text.find(side(a) + "; " + side(b) + " (") != std::string::npos) return true;
    }
  }
  return false;
}

}  // namespace lockstep::testing
