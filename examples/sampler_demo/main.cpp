// Shows DistributedSampler: which of ten samples each rank gets in each epoch, and the batches that they form.
//   lockstep run --nproc-per-node 3 build/bin/sampler_demo
#include <ATen/ATen.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

namespace {

// Sample i is the number i, and its square.
struct Squares {
  std::int64_t count;

  struct Batch {
    at::Tensor numbers, squares;
  };
  std::size_t size() const { return static_cast<std::size_t>(count); }
  Batch get_batch(std::span<const std::int64_t> indices) const {
    const at::Tensor numbers = at::tensor(at::IntArrayRef(indices.data(), indices.size()), at::kLong);
    return {numbers, numbers * numbers};
  }
};

// A rank's part of a data set, in batches.
struct Prepared {
  Squares dataset;
  lockstep::DistributedSampler sampler;
  lockstep::LoaderOptions options;

  auto batches(std::int64_t epoch) {
    sampler.set_epoch(epoch);
    return lockstep::loader(dataset, sampler, options);
  }
};

Prepared prepare(int rank, int world_size, std::size_t batch_size = 32, bool pin_memory = false, int num_workers = 0) {
  const Squares dataset{10};
  return {.dataset = dataset,
          .sampler = lockstep::DistributedSampler(dataset.size(), world_size, rank, {.shuffle = true, .seed = 0}),
          .options = {.batch_size = batch_size, .workers = num_workers, .pin_memory = pin_memory}};
}

std::string list_of(std::span<const std::int64_t> numbers) {
  std::string text;
  for (const auto number : numbers) text.append(text.empty() ? "" : " ").append(std::to_string(number));
  return text;
}

// Rank 0 prints what all ranks have, in rank order.
void print_all(const lockstep::World& world, const std::string& title, const std::string& mine) {
  const auto everyone = world.gather_object(mine);
  log_rank0(world, "%s", title.c_str());
  for (std::size_t rank = 0; rank < everyone.size(); ++rank) {
    std::printf("  rank %zu: %s\n", rank, everyone[rank].c_str());
  }
}

void show_indices(const lockstep::World& world, const lockstep::SamplerOptions& options, int epochs) {
  lockstep::DistributedSampler sampler(10, world, options);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    const std::string title = epochs == 1 ? "" : ", epoch " + std::to_string(epoch);
    print_all(world, sampler.describe() + title, list_of(sampler.indices()));
  }
}

void show_batches(const lockstep::World& world, std::int64_t epoch) {
  Prepared train = prepare(world.rank(), world.size(), 2);
  std::string batches;
  for (auto& [x, y] : train.batches(epoch)) {
    const at::Tensor numbers = x.contiguous();
    batches.append(batches.empty() ? "[" : " [");
    batches.append(list_of({numbers.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(x.numel())})).append("]");
  }
  print_all(world, "batches of 2, epoch " + std::to_string(epoch), batches);
}

}  // namespace

int main() {
  try {
    const auto world = lockstep::init_process_group();
    show_indices(world, {.shuffle = false}, 1);
    show_indices(world, {.shuffle = false, .drop_last = true}, 1);
    show_indices(world, {.shuffle = false, .padding = lockstep::Padding::none}, 1);
    show_indices(world, {.shuffle = false, .layout = lockstep::ShardLayout::contiguous}, 1);
    show_indices(world, {.shuffle = true, .seed = 0}, 3);
    show_batches(world, 1);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sampler_demo: %s\n", error.what());
    return 1;
  }
}
