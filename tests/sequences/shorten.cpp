#include "tests/sequences/shorten.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "tests/sequences/net.h"
#include "tests/sequences/oracle.h"

namespace lockstep::sequences {
namespace {

using Variants = std::vector<Sequence>;

template <class T>
bool set(T& value, T to) {
  return std::exchange(value, to) != to;
}

template <class Test>
bool any_event(const Events& events, Test test) {
  return std::any_of(events.begin(), events.end(),
                     [&](const Event& one) { return test(one) || any_event(one.body, test); });
}

// Whether the step of a join begins with gradients of its own.
bool zeroes(const Events& body) {
  bool zeroed[kModels] = {}, used[kModels] = {}, spreads = false, averages_in_even = false;
  for (const Event& one : body) {
    if (one.kind == Kind::zero && one.only != Only::odd && one.way != Way::some_none && one.way != Way::some_zeros) {
      zeroed[one.model] = true;
      spreads = spreads || one.only == Only::even;
    }
    averages_in_even = averages_in_even || (one.kind == Kind::forward && one.only != Only::odd && is_synchronised(one));
    for (int i = 0; i < kModels; ++i) used[i] = used[i] || (one.kind == Kind::forward && one.through[i]);
  }
  return !(spreads && averages_in_even) && (zeroed[0] || !used[0]) && (zeroed[1] || !used[1]);
}

// What a program may do with these options.
bool is_allowed(const Sequence& sequence) {
  const Setting& setting = sequence.setting;
  const bool is_plain = !setting.find_unused && !setting.static_graph;
  const bool finite = setting.non_finite == NonFinite::ignore;
  const bool narrow = setting.reduces_half || setting.reduces_float || setting.hook == Hook::fp16;
  return !any_event(sequence.events, [&](const Event& one) {
    if (one.kind == Kind::freeze) return !setting.find_unused && setting.shards == 0;
    if (one.kind == Kind::join && !setting.join_keeps) return !zeroes(one.body);
    if (one.kind != Kind::forward && one.kind != Kind::bare) return false;
    return (is_plain && one.parts != kWhole) || (finite && one.bad != Bad::none) || (!narrow && one.bad == Bad::huge);
  });
}

template <class Change>
void add(Variants& variants, const Sequence& sequence, Change change) {
  Sequence other = sequence;
  if (change(other) && is_allowed(other)) variants.push_back(std::move(other));
}

// Calls visit(list) for the list of all events, and for each join's body; by number, so that it can be found in copies.
std::vector<Events*> lists_of(Sequence& sequence) {
  std::vector<Events*> lists = {&sequence.events};
  for (Event& event : sequence.events) {
    if (!event.body.empty()) lists.push_back(&event.body);
  }
  return lists;
}

void leave_out_events(Variants& variants, Sequence& sequence) {
  const auto lists = lists_of(sequence);
  for (std::size_t list = 0; list < lists.size(); ++list) {
    const auto count = static_cast<std::ptrdiff_t>(lists[list]->size());
    for (std::ptrdiff_t length = (count + 1) / 2; length >= 1; length = length == 1 ? 0 : (length + 1) / 2) {
      for (std::ptrdiff_t first = 0; first + length <= count; first += length) {
        add(variants, sequence, [&](Sequence& other) {
          Events& events = *lists_of(other)[list];
          events.erase(events.begin() + first, events.begin() + first + length);
          return true;
        });
      }
    }
  }
}

void make_setting_plainer(Variants& variants, const Sequence& sequence) {
  const auto change = [&](auto call) { add(variants, sequence, [&](Sequence& other) { return call(other.setting); }); };
  change([](Setting& s) { return set(s.samples, false); });
  change([](Setting& s) { return set(s.skip_unused, false); });
  change([](Setting& s) { return !s.skip_unused && set(s.find_unused, false); });
  change([](Setting& s) { return set(s.static_graph, false); });
  change([](Setting& s) { return set(s.buckets_off, false); });
  change([](Setting& s) { return set(s.cap_mb, 0.0); });
  change([](Setting& s) { return set(s.caps_list, false); });
  change([](Setting& s) { return set(s.delays, false); });
  change([](Setting& s) { return set(s.hook, Hook::none); });
  change([](Setting& s) { return set(s.reduces_float, false); });
  change([](Setting& s) { return set(s.reduces_half, false); });
  change([](Setting& s) { return set(s.non_finite, NonFinite::ignore); });
  change([](Setting& s) { return set(s.norm_in_eval, false); });
  change([](Setting& s) { return !s.norm_in_eval && set(s.norm, false); });
  change([](Setting& s) { return set(s.takes_list, false); });
  change([](Setting& s) { return set(s.join_keeps, false); });
  change([](Setting& s) { return set(s.join_carries, false); });
  change([](Setting& s) { return set(s.shares_optimizer, false); });
  change([](Setting& s) { return set(s.local_aside, false); });
  change([](Setting& s) { return set(s.compares, false); });
  change([](Setting& s) { return set(s.first_alone, false); });
  change([](Setting& s) { return set(s.buffers_alone, false); });
  change([](Setting& s) { return set(s.over_links, false); });
  change([](Setting& s) { return set(s.models, 1); });
  change([](Setting& s) { return s.ranks > 2 && set(s.ranks, 2); });
}

void make_events_plainer(Variants& variants, Sequence& sequence) {
  const auto lists = lists_of(sequence);
  for (std::size_t list = 0; list < lists.size(); ++list) {
    for (std::size_t i = 0; i < lists[list]->size(); ++i) {
      const auto change = [&](auto call) {
        add(variants, sequence, [&](Sequence& other) { return call((*lists_of(other)[list])[i]); });
      };
      change([](Event& e) { return set(e.ranks, kAll); });
      change([](Event& e) { return e.kind != Kind::zero && set(e.parts, kWhole); });
      change([](Event& e) { return set(e.weight, 0.0); });
      change([](Event& e) { return set(e.weightless, 0U); });
      change([](Event& e) { return set(e.bad, Bad::none); });
      change([](Event& e) { return set(e.throws, Throws::never); });
      change([](Event& e) { return set(e.retains, false); });
      change([](Event& e) { return set(e.way, Way::wrapper); });
      change([](Event& e) { return set(e.loss, 0); });
      change([](Event& e) { return set(e.only, Only::always); });
      change([](Event& e) { return set(e.divides_by_active, false); });
      for (int rank = 0; rank < kMostRanks; ++rank) {
        change([&](Event& e) { return e.kind == Kind::join && set(e.lengths[rank], 1); });
        change([&](Event& e) { return e.lengths[rank] > 2 && set(e.lengths[rank], 2); });
      }
    }
  }
}

void keep(Events& events, const std::set<int>& ids) {
  std::erase_if(events, [&](const Event& one) { return !ids.contains(one.id); });
  for (Event& one : events) keep(one.body, ids);
}

}  // namespace

Sequence without_idle_events(const Sequence& sequence) {
  std::set<int> happened;
  for (const Occurrence& one : expected_of(sequence)) {
    if (one.happens) happened.insert(one.event->id);
  }
  Sequence other = sequence;
  keep(other.events, happened);
  return other;
}

Shortened shorten(Sequence sequence, std::string failure, const Check& check, int most_tries) {
  Shortened shortened{.sequence = without_idle_events(sequence), .failure = std::move(failure)};
  for (bool shorter = true; shorter && shortened.tries < most_tries;) {
    shorter = false;
    Variants variants;
    leave_out_events(variants, shortened.sequence);
    make_setting_plainer(variants, shortened.sequence);
    make_events_plainer(variants, shortened.sequence);
    for (Sequence& variant : variants) {
      if (shortened.tries >= most_tries) break;
      ++shortened.tries;
      auto text = check(variant);
      if (!text) continue;
      shortened.sequence = std::move(variant);
      shortened.failure = *std::move(text);
      shorter = true;
      break;
    }
  }
  if (shortened.tries > 0) shortened.sequence = without_idle_events(shortened.sequence);
  return shortened;
}

}  // namespace lockstep::sequences
