// Thousands of random sequences of collectives, which end when ranks disagree, do not come, or leave: every rank is
// told who and what, nobody's memory was touched, and what came before is right.
#include <doctest/doctest.h>

#include <barrier>
#include <optional>
#include <random>

#include "lockstep/base/error.h"
#include "tests/contract/engine/case_count.h"
#include "tests/contract/engine/mismatch.h"
#include "tests/support/rank_threads.h"

namespace mismatch_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

constexpr int kGroups = 24;
constexpr std::size_t kLongest = 16;

// The last call of one rank.
struct Outcome {
  std::optional<Error> error;
  bool is_untouched = false;
};

struct Sequence {
  std::vector<Step> steps;  // only the last may fail
  std::vector<Outcome> outcomes;

  const Step& last() const { return steps.back(); }
  std::size_t length() const { return steps.size(); }
};

Sequence random_sequence(std::mt19937& random, int ranks, int seed) {
  Sequence made;
  made.outcomes.resize(static_cast<std::size_t>(ranks));
  do {
    made.steps.push_back(random_step(random, ranks, seed + static_cast<int>(made.length())));
  } while (made.last().ending == Ending::success && made.length() < kLongest);
  return made;
}

void be_refused(Engine& engine, const Attempt& attempt, std::mt19937& own) {
  Collective wrong = attempt.collective();
  std::vector<Segment> output;
  spoil(wrong, output, own, engine.size());
  try {
    engine.run(wrong, soon());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::invalid_argument) return;
    throw;
  }
  throw std::runtime_error("wrong arguments are not refused: " + std::string(to_string(wrong.kind)));
}

void disagree(Engine& engine, const Attempt& attempt, const Step& step, std::size_t number) {
  try {
    engine.run(attempt.collective(), soon());
  } catch (const Error& error) {
    const std::string text = error.what();
    if (error.kind() != ErrorKind::desync) throw;
    if (!shows_both_sides(text, step, number)) throw std::runtime_error("it does not show both sides: " + text);
    if (!attempt.is_untouched()) throw std::runtime_error("memory was touched: " + text);
    try {
      engine.run({}, soon());
    } catch (const Error& again) {
      if (again.kind() == ErrorKind::desync && again.what() == text) return;
      throw;
    }
    throw std::runtime_error("the engine works on after " + text);
  }
  throw std::runtime_error("a disagreement goes unnoticed: " + text_of(step.calls[0]));
}

// One rank's part.
void play(std::unique_ptr<Engine>& engine, Sequence& sequence, Where where, std::barrier<>& all) {
  const int rank = engine->rank();
  const auto r = static_cast<std::size_t>(rank);
  std::mt19937 own(static_cast<unsigned>(sequence.last().calls[r].seed * 8 + rank));
  std::size_t number = 0;
  for (const Step& step : sequence.steps) {
    ++number;
    const bool is_missed = step.ending == Ending::absence || step.ending == Ending::departure;
    // Who has finished the call before and gives up this one ends the group for those who have not.
    if (is_missed) all.arrive_and_wait();
    if (is_missed && step.astray.contains(rank)) {
      if (step.ending == Ending::departure) engine.reset();
      return;
    }
    const Attempt attempt(*engine, step.calls[r], own, where);
    if (step.refused[r]) be_refused(*engine, attempt, own);
    if (step.ending == Ending::desync) {
      return disagree(*engine, attempt, step, number);
    }
    try {
      engine->run(attempt.collective(), step.ending == Ending::absence ? Deadline::after(30ms) : soon());
    } catch (const Error& error) {
      if (step.ending == Ending::success) throw;
      sequence.outcomes[r] = {error, attempt.is_untouched()};
      return;
    }
    attempt.check_result(Match::bits);
  }
}

// What is wrong on one rank ends the test for all.
void play_or_abort(std::unique_ptr<Engine>& engine, Sequence& sequence, Where where, std::barrier<>& all) {
  try {
    play(engine, sequence, where, all);
  } catch (const std::exception& error) {
    engine->abort(error.what());
    all.arrive_and_drop();
    throw;
  }
}

void check_text(const Sequence& sequence, const std::string& text) {
  INFO(text);
  if (sequence.last().ending == Ending::departure) {
    CHECK(std::ranges::any_of(sequence.last().astray, [&](int rank) {
      return text.find("rank " + std::to_string(rank) + " has left") != std::string::npos;
    }));
    return;
  }
  const std::size_t missing = text.find("missing: ");
  REQUIRE(missing != std::string::npos);
  for (const int rank : sequence.last().astray) {
    CHECK(text.find("rank " + std::to_string(rank), missing) != std::string::npos);
  }
}

void check_ending(const Sequence& sequence, Engines& engines) {
  const Ending ending = sequence.last().ending;
  if (ending == Ending::success || ending == Ending::desync) return;
  const ErrorKind kind = ending == Ending::absence ? ErrorKind::timeout : ErrorKind::peer_lost;
  for (std::size_t r = 0; r < engines.size(); ++r) {
    const bool called = !sequence.last().astray.contains(static_cast<int>(r));
    INFO("rank " << r << " in " << text_of(sequence.last().calls[r]));
    if (called) {
      const Outcome& outcome = sequence.outcomes[r];
      REQUIRE(outcome.error);
      CHECK_MESSAGE(outcome.error->kind() == kind, outcome.error->what());
      CHECK(outcome.is_untouched);
      check_text(sequence, outcome.error->what());
    }
    if (!engines[r]) continue;
    try {
      engines[r]->run({}, soon());
      FAIL("the engine works on");
    } catch (const Error& error) {
      CHECK_MESSAGE(error.kind() == kind, error.what());
    }
  }
}

void run_sequences(Over over, int ranks) {
  const auto cases = static_cast<std::size_t>(random_cases() / 2 / kGroups);
  const Where where = over == Over::arena ? Where::arena : Where::ordinary;
  // Small rings and chunks, so that modest sizes take every way.
  const EngineOptions options{.ring_bytes = 8 << 10,
                              .tuning = {.small_bytes = 4 << 10, .chunk_bytes = 8 << 10, .window_chunks = 2}};
  std::mt19937 random(static_cast<unsigned>(ranks));
  for (std::size_t done = 0, number = 0; done < cases; ++number) {
    Sequence sequence = random_sequence(random, ranks, static_cast<int>(done));
    INFO(ranks << " ranks, sequence " << number << " of " << sequence.length());
    Engines engines = make_engines(ranks, over, options);
    std::barrier all(ranks);
    run_ranks_or_throw(ranks,
                       [&](int rank) { play_or_abort(engines[static_cast<std::size_t>(rank)], sequence, where, all); });
    check_ending(sequence, engines);
    done += sequence.length();
  }
}

}  // namespace

// fault: 29, 30, 32
// feature: C-15
TEST_CASE("random disagreements over the arena") {
  for (int ranks = 1; ranks <= 7; ++ranks) run_sequences(Over::arena, ranks);
}

// fault: 29, 30, 32
// feature: C-15
TEST_CASE("random disagreements over links") {
  for (int ranks = 1; ranks <= 7; ++ranks) run_sequences(Over::links, ranks);
}

TEST_CASE("random disagreements among nodes of two ranks") {
  for (int ranks = 3; ranks <= 7; ++ranks) run_sequences(Over::nodes, ranks);
}

TEST_CASE("random disagreements in trees") {
  for (int ranks = 3; ranks <= 7; ++ranks) run_sequences(Over::trees, ranks);
}

}  // namespace mismatch_test
