// load(): beside a writer, what it reads from the disk, buffers of all kinds; and who waits while old sets are removed.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/train/checkpoint/async_saver.h"
#include "lockstep/train/checkpoint/save.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_loading.h"
#include "lockstep/train/checkpoint/set_reader.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"
#include "tests/support/temporary_directory.h"

namespace load_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

thread_local std::uint64_t bytes_read = 0;         // of files, by this thread
thread_local std::function<void()> after_read{};   // what this thread does once, when it has read of a file
thread_local std::future<void>* before_removal{};  // what this thread waits for before it removes a file
std::atomic<int> removals_in_vain = 0;             // that waited for too long

}  // namespace

// In place of the C library's, to see what is read and when something is removed. By other names here, since headers
// declare those.
[[gnu::visibility("default")]] ssize_t counted_pread(int fd, void* out, size_t count, off_t offset) __asm__("pread");
[[gnu::visibility("default")]] int waiting_unlinkat(int directory, const char* name, int flags) __asm__("unlinkat");

ssize_t counted_pread(int fd, void* out, size_t count, off_t offset) {
  const ssize_t got = ::syscall(SYS_pread64, fd, out, count, offset);
  if (got > 0) bytes_read += static_cast<std::uint64_t>(got);
  if (after_read) std::exchange(after_read, nullptr)();
  return got;
}

int waiting_unlinkat(int directory, const char* name, int flags) {
  if (std::future<void>* const event = std::exchange(before_removal, nullptr)) {
    removals_in_vain += event->wait_for(std::chrono::seconds(20)) != std::future_status::ready;
  }
  return static_cast<int>(::syscall(SYS_unlinkat, directory, name, flags));
}

namespace {

using torch::nn::Linear;

std::uint64_t tensor_bytes(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : manifest.tensors) bytes += tensor.bytes();
  return bytes;
}

}  // namespace

TEST_CASE("4 ranks of a node read each byte of the tensors once from the disk, and then what each of them needs") {
  const TemporaryDirectory folder;
  std::atomic<std::uint64_t> in_shares = 0, in_all = 0;
  std::uint64_t stored = 0;
  run_worlds_or_throw(4, [&](const World& world) {
    DistributedDataParallel ddp(Linear(2200, 2000), world);
    const State state{.model = ddp};
    const std::filesystem::path path = save(folder.path(), state, world);
    SetReader set(path);
    set.open_files();  // which reads their headers
    if (world.rank() == 0) stored = tensor_bytes(set.manifest());
    const Reader reader = reader_of(world);
    CHECK(reader.count == 4);
    bytes_read = 0;
    verify_share(set, reader);
    in_shares += bytes_read;
    CHECK(bytes_read < tensor_bytes(set.manifest()));
    bytes_read = 0;
    load(folder.path(), state, world);
    in_all += bytes_read;
  });
  CHECK(in_shares == stored);
  // The rest comes from the system's cache: what each rank needs, and headers.
  CHECK(in_all > 5 * stored * 9 / 10);
  CHECK(in_all < 5 * stored * 11 / 10);
}

TEST_CASE("ranks load while another writer saves and removes sets, and always find one") {
  const TemporaryDirectory folder;
  Linear written(20, 20);
  save(folder.path(), {.model = written, .step = 0});
  std::atomic<bool> is_over = false;
  std::thread writer([&] {
    for (std::int64_t i = 1; !is_over; ++i) {
      save(folder.path(), {.model = written, .step = i / 2}, {.retention = {.keep_last = 1}});
    }
  });
  const auto errors = run_worlds(2, [&](const World& world) {
    Linear model(20, 20);
    std::int64_t last = 0;
    for (int i = 0; i < 30; ++i) {
      const Loaded loaded = load(folder.path(), {.model = model}, world);
      CHECK(loaded.step >= last - 1);
      last = loaded.step;
      CHECK(at::equal(model->weight, written->weight));
      CHECK(load_if_any(folder.path(), {.model = model}, world).has_value());
    }
  });
  is_over = true;
  writer.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

TEST_CASE("nobody waits in save() while rank 0 removes old sets") {
  const TemporaryDirectory folder;
  std::promise<void> saved;
  std::future<void> is_saved = saved.get_future();
  const SaveOptions options{.retention = {.keep_last = 1}};
  run_worlds_or_throw(2, [&](const World& world) {
    DistributedDataParallel<Linear> model(Linear(2, 2), world);
    save(folder.path(), {.model = model, .step = 1}, world, options);
    if (world.rank() == 0) before_removal = &is_saved;
    CHECK(save(folder.path(), {.model = model, .step = 2}, world, options) == set_path(folder.path(), 2));
    if (world.rank() == 1) saved.set_value();
    if (world.rank() == 0) CHECK(before_removal == nullptr);
  });
  CHECK(removals_in_vain == 0);
  CHECK(list_sets(folder.path()).size() == 1);
}

TEST_CASE("an expanded buffer is refused by name, before anything is written or changed") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    struct Masked : torch::nn::Module {
      explicit Masked(const at::Tensor& mask) { register_buffer("mask", mask); }
    };
    Masked expanded(at::ones({1}).expand({4})), plain(at::ones({4}));
    CHECK_ERROR(error_of([&] { save(folder.path(), {.model = expanded}, world); }), ErrorKind::invalid_argument,
                "'model.mask' share memory");
    CHECK(std::filesystem::is_empty(folder.path()));
    world.barrier();
    save(folder.path(), {.model = plain}, world);
    CHECK_ERROR(error_of([&] { load(folder.path(), {.model = expanded}, world); }), ErrorKind::invalid_argument,
                "'model.mask' share memory");
  });
}

TEST_CASE("what was made in inference mode is saved and loaded, in inference mode and outside of it") {
  const TemporaryDirectory folder;
  struct WithBuffer : torch::nn::Module {
    WithBuffer() {
      weight = register_parameter("weight", at::ones({3}));
      const c10::InferenceMode inference;
      buffer = register_buffer("buffer", at::ones({3}));
    }
    at::Tensor weight, buffer;
  };
  WithBuffer model;
  torch::optim::Adam optimizer({model.weight}, torch::optim::AdamOptions(0.1));
  const auto step = [&] {
    optimizer.zero_grad();
    model.weight.sum().backward();
    optimizer.step();
  };
  step();
  for (const bool saves_in_inference : {false, true}) {
    for (const bool loads_in_inference : {false, true}) {
      CAPTURE(saves_in_inference);
      CAPTURE(loads_in_inference);
      const at::Tensor before = model.weight.detach().clone();
      {
        const c10::InferenceMode mode(saves_in_inference);
        save(folder.path(), {.model = model, .optimizer = optimizer});
      }
      step();
      {
        const c10::InferenceMode inference;
        model.buffer.fill_(9);
      }
      {
        const c10::InferenceMode mode(loads_in_inference);
        load(folder.path(), {.model = model, .optimizer = optimizer});
      }
      CHECK(at::equal(model.weight, before));
      CHECK(at::equal(model.buffer, at::ones({3})));
      step();  // training goes on
    }
  }
}

TEST_CASE("a set of a model that was not tied is not loaded into a tied one, and the other way round it is") {
  struct Model : torch::nn::Module {
    explicit Model(bool is_tied) {
      for (const char* name : {"first", "second"}) {
        at::Tensor& weight = weights.emplace_back(is_tied && !weights.empty() ? weights[0] : at::rand({300, 200}));
        register_parameter(name, weight);
      }
    }
    std::vector<at::Tensor> weights;
  };
  const TemporaryDirectory folder;
  Model plain(false), tied(true), other(false);
  const at::Tensor before = tied.weights[0].clone();
  save(folder / "plain", {.model = plain});
  CHECK_ERROR(error_of([&] { load(folder / "plain", {.model = tied}); }), ErrorKind::invalid_argument,
              "first and second share memory in the module, and have different values in the checkpoint");
  CHECK(at::equal(tied.weights[0], before));
  save(folder / "tied", {.model = tied});
  load(folder / "tied", {.model = other});
  for (const at::Tensor& weight : other.weights) CHECK(at::equal(weight, before));
  save(folder / "equal", {.model = other});
  tied.weights[0].detach().zero_();
  load(folder / "equal", {.model = tied});
  CHECK(at::equal(tied.weights[0], before));
}

TEST_CASE("where all sets are removed while they are tried, none of them is called damaged") {
  const TemporaryDirectory folder;
  const CapturedLog log;
  Linear model(2, 2);
  save(folder.path(), {.model = model, .step = 1});
  run_worlds_or_throw(2, [&](const World& world) {
    Linear mine(2, 2);
    // It reads the manifest first.
    if (world.rank() == 0) after_read = [&] { std::filesystem::remove_all(set_path(folder.path(), 1)); };
    const Error error = error_of([&] { load(folder.path(), {.model = mine}, world); });
    CHECK_ERROR(error, ErrorKind::corrupt_data, "every checkpoint in " + folder.path() + " was replaced or removed");
    CHECK_FALSE(contains(error.what(), "damaged"));
  });
  CHECK_FALSE(contains(log.text(), "damaged"));
}

}  // namespace load_test
