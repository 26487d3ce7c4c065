// Ranks that save or load different things, and failures of one rank, which are the same error on all.
#include "lockstep/train/checkpoint/save_agreement.h"

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <pthread.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lockstep/train/checkpoint/async_saver.h"
#include "lockstep/train/checkpoint/save.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/together.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"
#include "tests/support/temporary_directory.h"

namespace save_agreement_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

thread_local bool can_start_threads = true;

}  // namespace

// In place of the C library's, so that a thread can be refused. By another name here, since a header declares that.
[[gnu::visibility("default")]] int refusing_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                                           void* (*run)(void*),
                                                           void* argument) __asm__("pthread_create");

int refusing_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  if (!can_start_threads) return EAGAIN;
  static const auto real = reinterpret_cast<decltype(&refusing_pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, run, argument);
}

namespace {

using torch::nn::Linear;

// A hook whose state cannot be saved or loaded: it throws what it is told to.
struct FailingHook {
  std::function<void()> on_save = [] {}, on_load = [] {};

  std::map<std::string, at::Tensor> state(std::string_view) const {
    on_save();
    return {{"memory", at::ones({2})}};
  }
  void load_state(const std::map<std::string, at::Tensor>&, std::string_view) { on_load(); }
};

// The same on all ranks, which share a generator here.
Linear equal_model() {
  Linear model(2, 2);
  const at::NoGradGuard no_grad;
  for (at::Tensor parameter : model->parameters()) parameter.fill_(0.5);
  return model;
}

struct Failure {
  std::function<void()> action;
  ErrorKind kind;
  std::string text;
};

std::vector<Failure> failures() {
  return {
      {[] { throw std::bad_alloc(); }, ErrorKind::internal, "rank 1: there is not enough memory"},
      {[] { at::empty({std::int64_t{1} << 50}); }, ErrorKind::internal, "rank 1: "},
      {[] { std::filesystem::create_directory("/proc/nowhere"); }, ErrorKind::internal, "rank 1: filesystem error"},
      {[] { throw std::runtime_error("of the program"); }, ErrorKind::invalid_argument, "rank 1: of the program"},
      {[] { throw 7; }, ErrorKind::invalid_argument, "rank 1: the thrown object is not a std::exception"},
      {[] { at::ones({2}).view({3}); }, ErrorKind::invalid_argument, "rank 1: "},
      {[] { throw Error(ErrorKind::unauthorized, "not for you"); }, ErrorKind::unauthorized, "rank 1: not for you"}};
}

}  // namespace

TEST_CASE("ranks that save different things are told so, before any work") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(3, [&](const World& world) {
    const bool is_other = world.rank() == 2;
    Linear model = equal_model();
    torch::optim::SGD sgd(model->parameters(), 0.1);
    torch::optim::Adam adam(model->parameters());
    nlohmann::json user;
    const auto check = [&](const State& state, const SaveOptions& options, const std::string& text,
                           const std::string& directory = {}) {
      const std::string path = directory.empty() || !is_other ? folder.path() : directory;
      CHECK_ERROR(error_of([&] { save(path, state, world, options); }), ErrorKind::invalid_argument, text);
    };
    State state{.model = model, .optimizer = sgd};
    state.step = is_other ? 4 : 3;
    check(state, {}, "rank 0 saves step 3, rank 2 step 4");
    state.step = 0;
    state.epoch = is_other ? 1 : 0;
    check(state, {}, "rank 0 saves epoch 0, rank 2 epoch 1");
    state.epoch = 0;
    check(state, {}, "rank 0 saves directory " + folder.path() + ", rank 2 directory /elsewhere", "/elsewhere");
    check(state, {.digest = is_other ? DigestKind::sha_256 : DigestKind::xxh3_128},
          "rank 0 saves digests XXH3-128, rank 2 digests SHA-256");
    check(state, {.retention = {.keep_last = is_other ? 2 : 1}}, "rank 0 saves keep_last 1, rank 2 keep_last 2");
    check(state, {.retention = {.keep_last = 1, .keep_best = 1, .metric = is_other ? "loss" : "accuracy"}},
          "rank 0 saves metric accuracy, rank 2 metric loss");
    check(state, {.if_ranks_differ = is_other ? IfRanksDiffer::rank_0 : IfRanksDiffer::refuse},
          "rank 0 saves if_ranks_differ refuse, rank 2 if_ranks_differ rank_0");
    check(state, {.retention = {.keep_last = -1}}, "keep_last is -1");
    if (is_other) state.optimizer = adam;
    check(state, {}, "rank 0 saves optimizer torch::optim::SGD, rank 2 optimizer torch::optim::Adam");
    state.optimizer = sgd;
    if (!is_other) state.user = user;
    check(state, {}, "rank 0 saves parts module + user, rank 2 parts module");
    // Rank 0's count.
    state.user = user;
    state.metrics = {{"loss", static_cast<double>(world.rank())}};
    save(folder.path(), state, world);
    CHECK(load(folder.path(), state, world).metrics.at("loss") == 0);
  });
  CHECK(list_sets(folder.path()).size() == 1);
}

TEST_CASE("ranks that load different things are told so, and nothing has changed") {
  const TemporaryDirectory folder, other;
  run_worlds_or_throw(2, [&](const World& world) {
    const bool is_other = world.rank() == 1;
    Linear model = equal_model();
    const State state{.model = model};
    save(folder.path(), state, world);
    CHECK_ERROR(error_of([&] { load(is_other ? other.path() : folder.path(), state, world); }),
                ErrorKind::invalid_argument, "rank 0 loads directory " + folder.path(), "rank 1 directory");
    CHECK_ERROR(error_of([&] { load(folder.path(), state, world, {.require_signature = is_other}); }),
                ErrorKind::invalid_argument, "rank 0 loads require_signature false, rank 1 require_signature true");
    CHECK_ERROR(error_of([&] {
                  if (is_other) {
                    load(folder.path(), state, world);
                  } else {
                    load_if_any(folder.path(), state, world);
                  }
                }),
                ErrorKind::invalid_argument, "rank 0 loads by load_if_any, rank 1 by load");
    CHECK_ERROR(error_of([&] { load(folder.path(), is_other ? State{} : state, world); }), ErrorKind::invalid_argument,
                "rank 0 loads parts module, rank 1 parts nothing");
    CHECK(load(folder.path(), state, world).step == 0);
  });
}

TEST_CASE("options of an AsyncSaver that differ or mean nothing are refused on all ranks") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    const bool is_other = world.rank() == 1;
    CHECK_ERROR(error_of([&] { AsyncSaver(folder.path(), world, {.save = {.retention = {.keep_last = -1}}}); }),
                ErrorKind::invalid_argument, "keep_last is -1");
    CHECK_ERROR(
        error_of([&] { AsyncSaver(folder.path(), world, {.save = {.retention = {.keep_last = is_other ? -1 : 1}}}); }),
        ErrorKind::invalid_argument, "keep_last 1, rank 1 keep_last -1");
    CHECK_ERROR(error_of([&] { AsyncSaver(folder.path(), world, {.keep_going = is_other}); }),
                ErrorKind::invalid_argument, "keep_going false, rank 1 keep_going true");
    AsyncSaver fine(folder.path(), world);
  });
}

TEST_CASE("whatever one rank throws while it saves or loads is the same error on all ranks") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(3, [&](const World& world) {
    FailingHook hook;
    State state{.hook = hook, .step = 1};
    save(folder.path(), state, world);
    state.step = 2;
    for (const Failure& failure : failures()) {
      CAPTURE(failure.text);
      const auto fail = world.rank() == 1 ? failure.action : [] {};
      hook.on_save = fail;
      CHECK_ERROR(error_of([&] { save(folder.path(), state, world); }), failure.kind, failure.text);
      AsyncSaver saver(folder.path(), world);
      CHECK_ERROR(error_of([&] { saver.save(state); }), failure.kind, failure.text);
      hook.on_save = [] {};
      hook.on_load = fail;
      CHECK_ERROR(error_of([&] { load(folder.path(), state, world); }), failure.kind, failure.text);
      hook.on_load = [] {};
    }
    CHECK(load(folder.path(), state, world).step == 1);
  });
  CHECK(list_sets(folder.path()).size() == 1);
}

TEST_CASE("where an object of one rank refuses what it is to load, no rank has another model than before") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(3, [&](const World& world) {
    FailingHook hook;
    Linear model(3, 2);
    DistributedDataParallel<Linear> ddp(model, world);
    torch::optim::Adam optimizer(ddp.parameters(), 1e-3);
    const State state{.model = ddp, .optimizer = optimizer, .hook = hook, .step = 1};
    save(folder.path(), state, world);
    {
      const at::NoGradGuard no_grad;
      model->weight.fill_(7);
    }
    optimizer.param_groups()[0].options().set_lr(0.5);
    if (world.rank() == 1) hook.on_load = [] { throw std::runtime_error("not this one"); };
    CHECK_ERROR(error_of([&] { load(folder.path(), state, world); }), ErrorKind::invalid_argument,
                "rank 1: not this one");
    CHECK(at::equal(model->weight, at::full({2, 3}, 7.0)));
    CHECK(optimizer.param_groups()[0].options().get_lr() == 0.5);
    hook.on_load = [] {};
    load(folder.path(), state, world);
    CHECK(!at::equal(model->weight, at::full({2, 3}, 7.0)));
    CHECK(optimizer.param_groups()[0].options().get_lr() == 1e-3);
  });
}

TEST_CASE("an AsyncSaver keeps its directory when the program goes to another one") {
  const TemporaryDirectory folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_directory(folder / "elsewhere");
  std::filesystem::current_path(folder.path());
  run_worlds_or_throw(1, [&](const World& world) {
    AsyncSaver saver("sets", world);
    std::filesystem::current_path(folder / "elsewhere");
    saver.save({.step = 2});
    saver.wait();
  });
  std::filesystem::current_path(before);
  CHECK(list_sets(folder / "sets").size() == 1);
  CHECK(std::filesystem::is_empty(folder / "elsewhere"));
}

TEST_CASE("an error that all ranks have alike names none of them; of several the first counts") {
  run_worlds_or_throw(3, [&](const World& world) {
    const auto fail = [&](const std::string& text) {
      return error_of([&] { act_together(world, "a test", [&] { throw Error(ErrorKind::invalid_argument, text); }); });
    };
    CHECK(std::string(fail("the same").what()) == "the same");
    CHECK(std::string(fail("of " + std::to_string(world.rank())).what()) == "rank 0: of 0");
    const Error first = error_of([&] {
      act_together(world, "a test", [&] {
        if (world.rank() == 1) throw Error(ErrorKind::corrupt_data, "one");
        if (world.rank() == 2) throw std::bad_alloc();
      });
    });
    CHECK_ERROR(first, ErrorKind::corrupt_data, "rank 1: one");
    CHECK(gather_together(world, "a test", [&] { return std::to_string(world.rank()); }) ==
          std::vector<std::string>{"0", "1", "2"});
    CHECK(from_rank_0(world, "a test", [&] { return "of " + std::to_string(world.rank()); }) == "of 0");
    CHECK_ERROR(error_of([&] { from_rank_0(world, "a test", []() -> std::string { throw std::bad_alloc(); }); }),
                ErrorKind::internal, "rank 0: there is not enough memory");
  });
}

TEST_CASE("a rank that cannot start a thread ends an asynchronous save on all ranks") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    Linear model = equal_model();
    State state{.model = model, .step = 1};
    AsyncSaver saver(folder.path(), world), strict(folder.path(), world, {.keep_going = false});
    can_start_threads = world.rank() != 1;
    strict.save(state);
    strict.wait_for_copy();
    CHECK_ERROR(error_of([&] { strict.wait(); }), ErrorKind::internal, "rank 1: ", "Resource temporarily unavailable");
    saver.save(state);
    CHECK_FALSE(saver.wait().has_value());  // it is logged, and training goes on
    can_start_threads = true;
    saver.save(state);
    CHECK(saver.wait() == set_path(folder.path(), 1));
  });
}

}  // namespace save_agreement_test
