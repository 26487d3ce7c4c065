// Where a sampler stands while a loop goes through a loader, and how a pass goes on from there: loops and stops of all
// kinds, compared with one thread that goes through the order.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/serialize.h>

#include <cstdlib>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/format.h"
#include "lockstep/train/data/distributed_sampler.h"
#include "lockstep/train/data/loader.h"
#include "lockstep/train/data/shard_sampler.h"
#include "tests/support/expect_error.h"

namespace positions_test {

using namespace lockstep;

namespace {

// A batch is its indices, and a random number of each.
struct Noisy {
  std::size_t count = 0;
  std::size_t size() const { return count; }
  at::Tensor get_batch(std::span<const std::int64_t> indices) const {
    const at::Tensor numbers = at::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size()), at::kDouble);
    return at::stack({numbers, at::rand({numbers.numel()}, at::kDouble)});
  }
};

using Batches = std::vector<at::Tensor>;

bool equal(const Batches& left, const Batches& right) {
  return left.size() == right.size() &&
         std::equal(left.begin(), left.end(), right.begin(),
                    [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); });
}

template <class Sampler>
std::string saved(const Sampler& sampler) {
  std::stringstream file;
  torch::save(sampler, file);
  return file.str();
}

template <class Sampler>
void load_into(Sampler& sampler, const std::string& text) {
  std::stringstream file(text);
  torch::load(sampler, file);
}

}  // namespace

TEST_CASE("a loop that fetches the next batch before it is needed has not taken it") {
  const Noisy dataset{20};
  for (const int workers : {0, 1, 4}) {
    DistributedSampler sampler(20, 1, 0, {.shuffle = false});
    auto range = loader(dataset, sampler, {.batch_size = 3, .workers = workers});
    auto it = range.begin();
    const auto taken = [&] { return sampler.position()->taken; };
    CHECK(taken() == 0);
    *it;
    CHECK(taken() == 3);
    *it;
    CHECK(taken() == 3);
    ++it;
    CHECK(taken() == 3);
    ++it;  // without a look at it
    CHECK(taken() == 6);
    static_cast<void>(it->numel());
    CHECK(taken() == 9);
    while (it != std::default_sentinel) ++it;
    CHECK(taken() == 20);
  }
}

TEST_CASE("a loader that starts in mid-epoch does so in its first pass alone") {
  const Noisy dataset{20};
  for (const int workers : {0, 2}) {
    DistributedSampler sampler(20, 1, 0, {.shuffle = false});
    const auto range = loader(dataset, sampler, {.batch_size = 3, .workers = workers, .first_batch = 5});
    const auto copy = range;
    for (int epoch = 0; epoch < 3; ++epoch) {
      sampler.set_epoch(epoch);
      const std::size_t expected = epoch == 0 ? 2 : 7;
      CHECK(range.size() == expected);
      CHECK(copy.size() == expected);
      std::size_t batches = 0;
      for (auto& batch : range) {
        CHECK(batch[0][0].item<double>() == 3. * static_cast<double>(batches + 7 - expected));
        ++batches;
        if (epoch == 1) break;
      }
      CHECK(batches == (epoch == 1 ? 1 : expected));
      CHECK(sampler.position()->taken == (epoch == 1 ? 3 : 20));
    }
  }
}

TEST_CASE("a failed begin leaves first_batch for the next") {
  const Noisy dataset{5};
  std::vector<std::int64_t> order{0, 1, 9, 2};
  const auto range = loader(dataset, order, {.batch_size = 1, .first_batch = 3});
  CHECK_ERROR(error_of([&] { range.begin(); }), ErrorKind::invalid_argument, "index 9");
  order[2] = 4;
  CHECK((*range.begin())[0][0].item<double>() == 2);
}

namespace {

// A training of several epochs that is stopped once and goes on with other workers, and on other ranks.
struct Case {
  std::size_t samples = 1, batch_size = 1;
  int shards = 1, ranks = 1, later_ranks = 1, workers = 0, later_workers = 0, epochs = 1;
  bool drop_last = false, shuffle = true;
  bool ahead = false;       // the loop fetches the next batch at once
  bool by_position = true;  // State keeps the sampler; or else first_batch
  std::size_t stop = 0;     // after so many steps

  std::string text() const {
    return fmt::format(
        "samples {} batch_size {} shards {} ranks {} then {} workers {} then {} epochs {} drop_last {} shuffle {} "
        "ahead "
        "{} by_position {} stop {}",
        samples, batch_size, shards, ranks, later_ranks, workers, later_workers, epochs, drop_last, shuffle, ahead,
        by_position, stop);
  }
  ShardSamplerOptions options() const {
    return {.shards = shards, .batch_size = batch_size, .shuffle = shuffle, .seed = 6, .drop_last = drop_last};
  }
};

Case drawn(std::uint64_t seed) {
  std::mt19937_64 dice(seed);
  const auto roll = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(dice); };
  const auto power = [&](int most) { return 1 << roll(0, most); };
  Case c{.samples = static_cast<std::size_t>(roll(1, 50)), .batch_size = static_cast<std::size_t>(roll(1, 6))};
  c.shards = power(2);
  c.ranks = std::min(power(2), c.shards);
  c.later_ranks = std::min(power(2), c.shards);
  c.workers = roll(0, 4), c.later_workers = roll(0, 4), c.epochs = roll(1, 3);
  c.drop_last = roll(0, 3) == 0, c.shuffle = roll(0, 2) != 0, c.ahead = roll(0, 1) != 0,
  c.by_position = roll(0, 1) != 0;
  c.stop = static_cast<std::size_t>(roll(0, 25));
  return c;
}

// One thread, no loader: steps of batches of all shards.
std::vector<Batches> expected(const Case& c) {
  const Noisy dataset{c.samples};
  std::vector<Batches> steps;
  for (int epoch = 0; epoch < c.epochs; ++epoch) {
    ShardSampler sampler(c.samples, 1, 0, c.options());
    sampler.set_epoch(epoch);
    sampler.begin();
    const auto order = sampler.indices();
    for (std::size_t at = 0; at < order.size(); at += c.batch_size) {
      const auto chosen = order.subspan(at, c.batch_size);
      if (at % (c.batch_size * static_cast<std::size_t>(c.shards)) == 0) steps.emplace_back();
      const internal::BatchNumbers numbers(internal::seed_of_batch({.seed = 6, .epoch = epoch, .pass = 0}, chosen));
      steps.back().push_back(dataset.get_batch(chosen));
    }
  }
  return steps;
}

// What one rank keeps.
struct Kept {
  std::string sampler;
  std::int64_t epoch = 0, batch = 0;
};

// The steps of one rank, from a kept state on, until `stop` of them in all; and what it keeps then.
Kept run_rank(const Case& c, int rank, int ranks, int workers, const Kept& from, std::size_t first, std::size_t stop,
              std::vector<Batches>& steps) {
  const Noisy dataset{c.samples};
  ShardSampler sampler(c.samples, ranks, rank, c.options());
  LoaderOptions options{.workers = workers};
  if (!from.sampler.empty() && c.by_position) load_into(sampler, from.sampler);
  if (!c.by_position) options.first_batch = from.batch;
  const auto range = shard_loader(dataset, sampler, options);
  Kept kept;
  kept.epoch = from.epoch;
  std::size_t step = first;
  std::int64_t batch = from.batch;
  for (std::int64_t epoch = from.epoch; epoch < c.epochs && step < stop; ++epoch, batch = 0) {
    sampler.set_epoch(epoch);
    kept.epoch = epoch;
    auto it = range.begin();
    for (; step < stop && it != std::default_sentinel; ++step, ++batch) {
      if (steps.size() <= step) steps.emplace_back();
      for (std::size_t shard = 0; shard < sampler.own_shards(); ++shard) {
        if (!c.ahead && shard != 0) ++it;
        steps[step].push_back(*it);
        if (c.ahead) ++it;
      }
      kept.batch = batch + 1;
      kept.sampler = saved(sampler);
      if (!c.ahead && step + 1 < stop) ++it;
    }
  }
  return kept;
}

// Empty, or what is wrong.
std::string problem(const Case& c) {
  const auto right = expected(c);
  const std::size_t stop = std::min(c.stop, right.size());
  std::vector<Batches> steps;
  Kept kept;
  for (int rank = 0; rank < c.ranks; ++rank) kept = run_rank(c, rank, c.ranks, c.workers, {}, 0, stop, steps);
  for (int rank = 0; rank < c.later_ranks; ++rank) {
    run_rank(c, rank, c.later_ranks, c.later_workers, kept, stop, right.size(), steps);
  }
  if (steps.size() != right.size()) return fmt::format("{} steps instead of {}", steps.size(), right.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!equal(steps[i], right[i])) return fmt::format("step {} differs", i);
  }
  return "";
}

std::string problem_or_exception(const Case& c) {
  try {
    return problem(c);
  } catch (const std::exception& error) {
    return error.what();
  }
}

// A smaller case that is wrong as well.
Case shrunk(Case c) {
  const auto attempt = [&](auto change) {
    Case smaller = c;
    change(smaller);
    if (smaller.text() == c.text() || problem_or_exception(smaller).empty()) return false;
    c = smaller;
    return true;
  };
  bool changed = true;
  while (changed) {
    changed = attempt([](Case& d) { d.workers = 0; }) || attempt([](Case& d) { d.later_workers = 0; }) ||
              attempt([](Case& d) { d.later_ranks = d.ranks; }) ||
              attempt([](Case& d) { d.ranks = d.later_ranks = 1; }) || attempt([](Case& d) { d.epochs = 1; }) ||
              attempt([](Case& d) { d.shuffle = d.drop_last = false; }) || attempt([](Case& d) { d.ahead = false; }) ||
              attempt([](Case& d) { d.batch_size = 1; }) || attempt([](Case& d) { d.stop -= d.stop > 0 ? 1 : 0; }) ||
              attempt([](Case& d) { d.samples -= d.samples > 1 ? 1 : 0; });
  }
  return c;
}

}  // namespace

TEST_CASE("random trainings that are stopped and go on take every batch once, with the same random numbers") {
  const char* wanted = std::getenv("LOCKSTEP_TEST_CASES");
  const int cases = wanted == nullptr ? 300 : std::atoi(wanted);
  for (int seed = 0; seed < cases; ++seed) {
    const Case c = drawn(static_cast<std::uint64_t>(seed));
    if (problem_or_exception(c).empty()) continue;
    const Case least = shrunk(c);
    FAIL("seed ", seed, ": ", least.text(), ": ", problem_or_exception(least));
  }
}

TEST_CASE("random passes of one rank that end early, by break or by stop_when, and go on in another process") {
  const auto batches_of = [](DistributedSampler& sampler, std::size_t batch_size) {
    const Noisy dataset{sampler.dataset_size()};
    Batches all;
    const auto order = sampler.indices();
    for (std::size_t at = 0; at < order.size(); at += batch_size) {
      const auto chosen = order.subspan(at, std::min(batch_size, order.size() - at));
      const internal::BatchNumbers numbers(
          internal::seed_of_batch({.seed = 6, .epoch = sampler.epoch(), .pass = 0}, chosen));
      all.push_back(dataset.get_batch(chosen));
    }
    return all;
  };
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 dice(seed);
    const auto roll = [&](int most) {
      return static_cast<std::size_t>(std::uniform_int_distribution<int>(0, most)(dice));
    };
    const Noisy dataset{1 + roll(60)};
    const std::size_t batch_size = 1 + roll(6);
    const int ranks = 1 + static_cast<int>(roll(3)), rank = static_cast<int>(roll(ranks - 1));
    const SamplerOptions options{.shuffle = roll(1) != 0, .seed = 6};
    std::string text;
    for (std::int64_t epoch = 0; epoch < 3;) {  // each round is a process
      DistributedSampler sampler(dataset.count, ranks, rank, options);
      if (!text.empty()) load_into(sampler, text);
      sampler.set_epoch(epoch);
      const Batches right = batches_of(sampler, batch_size);
      const std::size_t from = (sampler.position()->start + batch_size - 1) / batch_size;
      const std::size_t most = 1 + roll(8);
      const bool by_break = roll(1) != 0;
      Batches seen;
      const auto range =
          loader(dataset, sampler, {.batch_size = batch_size, .workers = static_cast<int>(roll(4)), .stop_when = [&] {
                                      return !by_break && seen.size() >= most;
                                    }});
      for (auto& batch : range) {
        seen.push_back(batch);
        if (by_break && seen.size() >= most) break;
      }
      text = saved(sampler);
      const std::size_t expected = std::min(most, right.size() - from);
      const auto first = right.begin() + static_cast<std::ptrdiff_t>(from);
      CHECK(equal(seen, Batches(first, first + static_cast<std::ptrdiff_t>(expected))));
      if (from + expected == right.size()) ++epoch;
    }
  }
}

}  // namespace positions_test
