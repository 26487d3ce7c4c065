// A rank that saves and loads a state of so many MiB with Lockstep: checkpoint_worker DIRECTORY MIB [load]. Rank 0
// prints what it took as JSON: seconds of save(), of load(), and how long AsyncSaver::save() kept the training, in its
// first save and in its second one; with a copy in the background, how long the training stood still, and how much
// longer its arithmetic took than alone; how much memory save() and load() took. With "load" it only loads what is
// there, and says how much all ranks have read from the disk.
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "lockstep/comm/group/world.h"
#include "lockstep/train/checkpoint/async_saver.h"
#include "lockstep/train/checkpoint/save.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"

namespace {

constexpr int kWidth = 2048;  // 16 MiB of weights a layer

struct Layers : torch::nn::Module {
  explicit Layers(int mebibytes) {
    for (int i = 0; i < std::max(1, mebibytes / 16); ++i) {
      const auto layer = torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false));
      register_module("layer" + std::to_string(i), layer);
    }
  }
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// From when all are there until all are done.
template <class Action>
double timed(const lockstep::World& world, Action action) {
  world.barrier();
  const auto start = std::chrono::steady_clock::now();
  action();
  world.barrier();
  return seconds_since(start);
}

// What a step of a training does meanwhile: a second or more of a product of matrices.
void arithmetic() {
  const torch::NoGradGuard no_grad;
  const torch::Tensor left = torch::rand({1024, 1024});
  torch::Tensor product = left;
  for (int i = 0; i < 40; ++i) product = torch::mm(left, product).div_(512);
}

// Of this process, in MiB: "VmHWM:" of its status, or "read_bytes:" of its input and output, which come from a disk.
double mebibytes_in(const char* file, const std::string& name, double unit) {
  std::ifstream stream(file);
  for (std::string word; stream >> word;) {
    if (word == name && stream >> word) return std::stod(word) * unit / (1 << 20);
  }
  return 0;
}
double peak_memory() { return mebibytes_in("/proc/self/status", "VmHWM:", 1024); }
double read_from_disk() { return mebibytes_in("/proc/self/io", "read_bytes:", 1); }

using Model = lockstep::DistributedDataParallel<std::shared_ptr<Layers>>;

// A checkpoint that no memory holds, as after a start.
void load_cold(const lockstep::World& world, Model& ddp, const std::filesystem::path& directory) {
  double read = -read_from_disk();
  const double load = timed(world, [&] { lockstep::load(directory, {.model = ddp}, world); });
  read += read_from_disk();
  world.all_reduce(read);
  if (world.is_main_rank()) std::printf("{\"load_cold\": %.4f, \"load_cold_read_mib\": %.1f}\n", load, read);
}

void save_and_load(const lockstep::World& world, Model& ddp, const std::filesystem::path& directory) {
  std::map<std::string, double> results;
  lockstep::State state{.model = ddp, .step = 1};
  const double before = peak_memory();
  results["save"] = timed(world, [&] { lockstep::save(directory / "sync", state, world); });
  results["save_memory_mib"] = peak_memory() - before;
  results["load"] = timed(world, [&] { lockstep::load(directory / "sync", state, world); });
  results["load_memory_mib"] = peak_memory() - before;

  lockstep::AsyncSaver saver(directory / "async", world);
  results["async_stall"] = timed(world, [&] { saver.save(state); });
  results["async"] = results["async_stall"] + timed(world, [&] { saver.wait(); });
  results["async_stall_again"] = timed(world, [&] { saver.save(state); });
  saver.wait();

  const double alone = timed(world, arithmetic);
  lockstep::AsyncSaver behind(directory / "behind", world, {.copy_in_background = true});
  behind.save(state);  // its memory is there from here on
  behind.wait();
  results["background_stall"] = timed(world, [&] { behind.save(state); });
  results["background_slowdown"] = timed(world, arithmetic) - alone;
  results["background_stall"] += timed(world, [&] { behind.wait_for_copy(); });
  behind.wait();
  if (!world.is_main_rank()) return;
  const char* separator = "{";
  for (const auto& [name, value] : results) {
    std::printf("%s\"%s\": %.4f", separator, name.c_str(), value);
    separator = ", ";
  }
  std::printf("}\n");
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3 && (count != 4 || std::strcmp(arguments[3], "load") != 0)) {
    std::fprintf(stderr, "usage: %s DIRECTORY MIB [load]\n", arguments[0]);
    return 2;
  }
  const std::filesystem::path directory = arguments[1];
  const lockstep::World world = lockstep::init_process_group();
  Model ddp(std::make_shared<Layers>(std::atoi(arguments[2])), world);
  if (count == 4) {
    load_cold(world, ddp, directory / "sync");
  } else {
    save_and_load(world, ddp, directory);
  }
  return 0;
}
