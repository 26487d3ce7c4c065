#include "tests/sequences/draw.h"

#include <bit>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "tests/graphs/dice.h"
#include "tests/sequences/net.h"

namespace lockstep::sequences {
namespace {

constexpr const char* kNames[kFamilies] = {
    "accumulate",     "zero",     "zero_some",     "samples",        "retained",    "several",     "unused",
    "fixed_graph",    "buckets",  "hook",          "narrow",         "bad",         "join",        "join_active",
    "join_keeps",     "norm",     "norm_in_eval",  "throws",         "throws_late", "dropped",     "inputs",
    "bare",           "evaluate", "evaluate_grad", "evaluate_local", "freeze",      "grow",        "two",
    "aside",          "clip",     "reload",        "links",          "list",        "first_alone", "buffers_alone",
    "zero_optimizer", "compare",  "power_sgd",     "lockstep",       "local_aside", "join_carry"};

constexpr std::uint64_t bits(std::initializer_list<Family> families) {
  std::uint64_t all = 0;
  for (const Family family : families) all |= std::uint64_t{1} << static_cast<int>(family);
  return all;
}

// What lockstep mode takes.
constexpr std::uint64_t kTaken =
    bits({Family::lockstep, Family::zero, Family::zero_some, Family::norm, Family::evaluate, Family::grow,
          Family::freeze, Family::throws, Family::aside, Family::clip, Family::reload, Family::links,
          Family::zero_optimizer, Family::compare});

class Drawer {
 public:
  Drawer(std::uint64_t seed, std::uint64_t families, int ranks) : dice_(seed) {
    sequence_.seed = seed;
    // With dice of their own, so that a new family at the end changes no case without it.
    testing::Dice dice(~seed);
    const int chance = std::popcount(families) <= 6 ? 65 : 25;
    for (int i = 0; i < kFamilies; ++i) drawn_ |= std::uint64_t{dice.percent(chance)} << i;
    drawn_ &= families;
    if (ranks == 3) without({Family::lockstep});  // its shards are a power of two
    draw_setting(ranks);
  }

  Sequence run() {
    const int steps = 1 + dice_.below(4);
    for (int i = 0; i < steps; ++i) {
      if (sequence_.setting.shards != 0) {
        draw_sharded_step(sequence_.events);
      } else if ((has(Family::join) || has(Family::join_active)) && dice_.percent(60)) {
        draw_join();
      } else {
        draw_step(sequence_.events);
      }
    }
    return std::move(sequence_);
  }

 private:
  bool has(Family family) const { return (drawn_ >> static_cast<int>(family) & 1U) != 0; }
  bool has(Family family, int chance) { return has(family) && dice_.percent(chance); }
  void without(std::initializer_list<Family> families) { drawn_ &= ~bits(families); }

  void draw_ranks(int ranks) {
    const int roll = dice_.below(10);
    int& drawn = sequence_.setting.ranks;
    drawn = roll < 6 ? 2 : roll < 8 ? 3 : roll < 9 ? 4 : 1;
    if (has(Family::lockstep) && drawn == 3) drawn = 4;
    if (ranks != 0) drawn = ranks;
  }

  void draw_setting(int ranks) {
    Setting& setting = sequence_.setting;
    draw_ranks(ranks);
    // A graph that stays the same has one order of events.
    if (has(Family::fixed_graph)) {
      without({Family::unused, Family::several, Family::retained, Family::throws, Family::throws_late, Family::freeze,
               Family::grow, Family::two, Family::bare});
    }
    if (has(Family::lockstep)) {
      drawn_ &= kTaken;
      setting.shards = 4;
    }
    if (has(Family::norm_in_eval) && !has(Family::norm)) without({Family::norm_in_eval});
    setting.static_graph = has(Family::fixed_graph);
    setting.find_unused = has(Family::unused);
    // What the graph of a repeated batch alone reaches counts as used there, and gets zeros.
    setting.skip_unused = has(Family::unused, 40) && !has(Family::join_carry);
    setting.samples = has(Family::samples);
    setting.models = has(Family::two) ? 2 : 1;
    setting.over_links = has(Family::links);
    setting.norm = has(Family::norm);
    setting.norm_in_eval = has(Family::norm_in_eval);
    setting.takes_list = has(Family::list);
    setting.join_keeps = has(Family::join_keeps);
    setting.join_carries = has(Family::join_carry);
    setting.shares_optimizer = has(Family::zero_optimizer);
    setting.local_aside = has(Family::local_aside);
    setting.compares = has(Family::compare);
    setting.first_alone = has(Family::first_alone);
    setting.buffers_alone = has(Family::buffers_alone);
    if (has(Family::buckets)) {
      const int kind = dice_.below(5);
      setting.buckets_off = kind < 2;
      if (kind == 2 || kind == 3) setting.cap_mb = kind == 2 ? 0.00003 : 0.0001;
      setting.caps_list = kind == 4;
      setting.delays = dice_.percent(30);
    }
    if (has(Family::hook)) setting.hook = Hook::all_reduce;
    if (has(Family::power_sgd)) {
      without({Family::hook, Family::narrow, Family::two, Family::samples, Family::join_active});
      setting.models = 1;
      setting.samples = false;
      setting.hook = Hook::power_sgd;
    }
    if (has(Family::narrow)) {
      const int kind = dice_.below(3);
      if (kind == 0) setting.hook = Hook::fp16;
      setting.reduces_float = kind == 1;
      setting.reduces_half = kind == 2;
    }
    if (has(Family::bad)) setting.non_finite = dice_.percent(50) ? NonFinite::skip_step : NonFinite::fail;
    if (has(Family::two) && has(Family::bad)) setting.non_finite = NonFinite::skip_step;
    fixed_parts_ = setting.static_graph && dice_.percent(50) ? static_cast<unsigned>(dice_.below(8)) * 01111U : kWhole;
  }

  Event event(Kind kind, int model = 0) {
    Event one;
    one.kind = kind;
    one.id = ++ids_;
    one.model = model;
    return one;
  }

  unsigned some_parts() {
    return sequence_.setting.find_unused ? static_cast<unsigned>(dice_.below(1 << 12)) : fixed_parts_;
  }
  int everybody() const { return (1 << sequence_.setting.ranks) - 1; }
  unsigned some_ranks() { return 1U + static_cast<unsigned>(dice_.below(15)); }

  Event a_forward(int model, int slot, bool local) {
    Event one = event(Kind::forward);
    one.through[0] = model != 1;
    one.through[1] = model != 0;
    one.local[0] = one.local[1] = local;
    if (model == 2 && dice_.percent(70)) one.local[dice_.below(2)] = !local;
    one.slot = slot;
    one.parts = fixed_parts_;
    if (sequence_.setting.find_unused && dice_.percent(70)) one.parts = some_parts();
    if (has(Family::samples, 30)) one.weight = 0.5 * (1 + dice_.below(20));
    if (has(Family::samples, 8)) one.weightless = static_cast<unsigned>(dice_.below(everybody()));
    if (has(Family::inputs)) one.choice = 1;
    const bool is_narrow = has(Family::narrow);
    if (has(Family::bad, 15) && (is_narrow || !has(Family::norm))) {
      one.bad = is_narrow && (has(Family::norm) || dice_.percent(60)) ? Bad::huge : Bad::infinite;
      one.rank = dice_.below(sequence_.setting.ranks);
    }
    return one;
  }

  Event a_backward(unsigned slots, bool retains = false) {
    Event one = event(Kind::backward);
    one.slots = slots;
    one.retains = retains;
    one.loss = sequence_.setting.static_graph ? 0 : dice_.below(4);
    return one;
  }

  Event a_zero(int model, bool is_partial) {
    Event one = event(Kind::zero, model);
    one.way = static_cast<Way>(dice_.below(5));
    if (!is_partial) return one;
    one.way = dice_.percent(60) ? Way::some_none : Way::some_zeros;
    one.parts = 1U + static_cast<unsigned>(dice_.below(0xFFF));
    return one;
  }

  // Something else, that may come up between any two events.
  void disturb(Events& events, int model) {
    const Family kinds[] = {Family::accumulate,  Family::zero,    Family::zero_some,     Family::throws,
                            Family::throws_late, Family::dropped, Family::inputs,        Family::bare,
                            Family::evaluate,    Family::freeze,  Family::evaluate_grad, Family::evaluate_local,
                            Family::grow,        Family::aside,   Family::clip,          Family::reload};
    std::vector<Family> drawn;
    for (const Family kind : kinds) {
      if (has(kind)) drawn.push_back(kind);
    }
    if (drawn.empty() || !dice_.percent(40)) return;
    disturb(events, model, drawn[static_cast<std::size_t>(dice_.below(static_cast<int>(drawn.size())))]);
  }

  void disturb(Events& events, int model, Family kind) {
    const auto add = [&](Kind what, bool on_any_rank) -> Event& {
      events.push_back(event(what, model));
      if (on_any_rank && dice_.percent(50)) events.back().ranks = some_ranks();
      return events.back();
    };
    switch (kind) {
      case Family::zero:
      case Family::zero_some:
        events.push_back(a_zero(model, kind == Family::zero_some));
        if (dice_.percent(40)) events.back().ranks = some_ranks();
        return;
      case Family::throws:
      case Family::throws_late: return throwing(events, model, kind == Family::throws_late);
      case Family::dropped:
        events.push_back(a_forward(model, 5, dice_.percent(50)));
        if (dice_.percent(50)) add(Kind::drop, false).slot = 5;
        return;
      // On all ranks: of a forward that all have made, those count it that do not differentiate it.
      case Family::inputs: add(Kind::input_gradient, false).slot = dice_.below(3); return;
      case Family::bare: add(Kind::bare, true).parts = some_parts(); return;
      case Family::evaluate: add(Kind::evaluate, true).choice = dice_.percent(70) ? 0 : 2; return;
      case Family::evaluate_local: add(Kind::evaluate, true).choice = 3; return;
      case Family::evaluate_grad: add(Kind::evaluate, true).choice = 1; return;
      case Family::freeze: add(dice_.percent(60) ? Kind::freeze : Kind::thaw, false).choice = dice_.below(3); return;
      case Family::grow: {
        const Kind kinds[] = {Kind::add_parameter, Kind::add_module, Kind::replace_module};
        add(kinds[dice_.below(3)], false);
        return;
      }
      case Family::aside:
        add(is_aside_ ? Kind::put_back : Kind::set_aside, false).choice = dice_.below(2);
        is_aside_ = !is_aside_;
        return;
      case Family::clip: add(Kind::clip, false); return;
      case Family::reload: add(Kind::reload, false); return;
      default: return micro(events, model, true, 2);
    }
  }

  void throwing(Events& events, int model, bool late) {
    if (sequence_.setting.shards != 0) return;
    Event one = a_forward(model, 4, dice_.percent(50));
    one.bad = Bad::none;
    one.throws = late ? Throws::in_middle : dice_.percent(40) ? Throws::in_forward : Throws::at_output;
    events.push_back(one);
    if (one.throws != Throws::in_forward) events.push_back(a_backward(1 << 4));
  }

  // Forwards and backwards that belong together, in slots from the given one on.
  void micro(Events& events, int model, bool local, int slot = 0) {
    Event first = a_forward(model, slot, local);
    if (is_synchronised(first) == local) first.local[0] = first.local[1] = local;
    if (local && dice_.percent(30)) first.ranks = some_ranks();
    events.push_back(first);
    disturb(events, model % 2);
    const unsigned one = 1U << static_cast<unsigned>(slot), other = 2 * one;
    if (!has(Family::several, 50)) return retained(events, model, one);
    Event second = a_forward(model, slot + 1, local || dice_.percent(40));
    if (local) second.local[0] = second.local[1] = true;
    second.ranks = dice_.percent(50) ? first.ranks : some_ranks();
    events.push_back(second);
    disturb(events, model % 2);
    if (dice_.percent(50)) return retained(events, model, one | other);
    const bool is_reversed = dice_.percent(50);
    events.push_back(a_backward(is_reversed ? other : one));
    disturb(events, model % 2);
    events.push_back(a_backward(is_reversed ? one : other));
  }

  void retained(Events& events, int model, unsigned slots) {
    if (has(Family::retained, 50)) {
      events.push_back(a_backward(slots, true));
      disturb(events, model % 2);
    }
    events.push_back(a_backward(slots));
    events.back().slots = slots;
  }

  void draw_sharded_step(Events& events) {
    if (dice_.percent(60)) events.push_back(a_zero(0, false));
    disturb(events, 0);
    Event one = event(Kind::sharded);
    one.choice = dice_.below(2);
    one.loss = dice_.below(4);
    if (dice_.percent(50)) one.parts = static_cast<unsigned>(dice_.below(1 << 12));
    if (dice_.percent(20)) one.ranks = some_ranks();
    if (has(Family::throws, 50)) one.throws = Throws::at_output;
    events.push_back(one);
    disturb(events, 0);
    if (has(Family::clip, 40)) events.push_back(event(Kind::clip));
    if (dice_.percent(80)) events.push_back(event(Kind::step));
    disturb(events, 0);
  }

  void draw_step(Events& events, bool spreads = false, bool always_zeroes = false) {
    const int model = sequence_.setting.models == 2 ? dice_.below(3) : 0;
    const auto part = [&](Only only, auto&& add) {
      Events some;
      add(some);
      for (Event& one : some) {
        if (spreads) one.only = only;
        events.push_back(std::move(one));
      }
    };
    const auto for_models = [&](auto&& call) {
      for (int i = 0; i < sequence_.setting.models; ++i) {
        if (model == i || model == 2) call(i);
      }
    };
    part(Only::even, [&](Events& to) {
      for_models([&](int i) {
        if (always_zeroes || dice_.percent(80)) to.push_back(a_zero(i, false));
      });
      disturb(to, model % 2);
      const int times = has(Family::accumulate) ? dice_.below(3) : 0;
      for (int i = 0; i < times; ++i) {
        micro(to, model, true);
        disturb(to, model % 2);
      }
      if (spreads && times == 0) micro(to, model, true);
    });
    part(Only::odd, [&](Events& to) {
      micro(to, model, false);
      disturb(to, model % 2);
      for_models([&](int i) {
        if (has(Family::clip, 40)) to.push_back(event(Kind::clip, i));
        if (dice_.percent(70)) to.push_back(event(Kind::step, i));
      });
    });
    disturb(events, model % 2);
  }

  // Of two iterations the first makes a forward, and the second another one, and a backward of both.
  void draw_carried_step(Events& events) {
    const auto add = [&](Event one, Only only) {
      one.only = only;
      events.push_back(std::move(one));
    };
    const auto disturb_in = [&](Only only) {
      Events some;
      disturb(some, 0);
      for (Event& one : some) add(std::move(one), only);
    };
    add(a_zero(0, false), Only::even);
    add(a_forward(0, 0, has(Family::accumulate, 40)), Only::even);
    disturb_in(Only::even);
    add(a_forward(0, 1, false), Only::odd);
    disturb_in(Only::odd);
    if (has(Family::retained, 40)) add(a_backward(3, true), Only::odd);
    add(a_backward(3), Only::odd);
    if (dice_.percent(70)) add(event(Kind::step), Only::odd);
  }

  void draw_join() {
    Event one = event(Kind::join);
    for (int& length : one.lengths) length = 1 + dice_.below(4);
    one.divides_by_active = has(Family::join_active) && (!has(Family::join) || dice_.percent(50));
    if (has(Family::join_carry, 60)) {
      draw_carried_step(one.body);
    } else {
      draw_step(one.body, has(Family::accumulate, 50), !has(Family::join_keeps));
    }
    sequence_.events.push_back(std::move(one));
  }

  testing::Dice dice_;
  std::uint64_t drawn_ = 0;
  Sequence sequence_;
  int ids_ = 0;
  unsigned fixed_parts_ = kWhole;
  bool is_aside_ = false;
};

}  // namespace

const char* name_of(Family family) { return kNames[static_cast<int>(family)]; }

std::uint64_t families_of(const std::string& names) {
  std::uint64_t families = 0;
  std::istringstream words(names);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "all") {
      families = ~std::uint64_t{0};
      continue;
    }
    const bool is_off = word.starts_with('-');
    int found = -1;
    for (int i = 0; i < kFamilies; ++i) {
      if (word.substr(is_off ? 1 : 0) == kNames[i]) found = i;
    }
    if (found < 0) throw std::invalid_argument("there is no family " + word);
    const std::uint64_t bit = std::uint64_t{1} << found;
    families = is_off ? families & ~bit : families | bit;
  }
  return families;
}

Sequence draw(std::uint64_t seed, std::uint64_t families, int ranks) { return Drawer(seed, families, ranks).run(); }

}  // namespace lockstep::sequences
