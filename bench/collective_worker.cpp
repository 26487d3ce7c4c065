// Times all-reduces of Lockstep, or copies, when it is told to; a Worker of bench_all_reduce.
//   bench_collective_worker native|native-ordinary|memcpy|memcpy-alone RANKS
// Started by a launcher, it is one of the launcher's ranks; else it starts RANKS of them. It is ready once a first
// all-reduce is done, and takes "run BYTES REPETITIONS CALLS".
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "bench/serve.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/group/world.h"
#include "lockstep/launch/spawn.h"

namespace {

using lockstep::Error;
using lockstep::ErrorKind;
using lockstep::ProcessGroup;

// The operation that is timed, on memory of one size.
class Operation {
 public:
  Operation(const ProcessGroup& group, const std::string& engine) : group_(group), engine_(engine) {}

  std::vector<double> measure(std::int64_t bytes, std::int64_t repetitions, std::int64_t calls) {
    if (!data_.defined() || data_.nbytes() != static_cast<std::size_t>(bytes)) allocate(bytes);
    check_once();
    std::vector<double> seconds;
    seconds.reserve(static_cast<std::size_t>(repetitions));
    for (std::int64_t i = 0; i < repetitions; ++i) {
      group_.barrier();
      const auto start = std::chrono::steady_clock::now();
      for (std::int64_t call = 0; call < calls; ++call) run();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      seconds.push_back(taken.count() / static_cast<double>(calls));
    }
    return seconds;
  }

 private:
  bool copies() const { return engine_.starts_with("memcpy"); }

  void allocate(std::int64_t bytes) {
    const std::int64_t count = bytes / 4;
    data_ = engine_ == "native" ? group_.empty({count}) : at::empty({count});
    if (copies()) source_ = at::empty({count});
    if (engine_ == "native" && group_.size() > 1 && !group_.is_shared(data_)) {
      throw Error(ErrorKind::internal, fmt::format("{} bytes of shared memory were not to be had", bytes));
    }
  }

  // Checks the result of one repetition; then leaves zeros, which stay zeros however often they are added up.
  void check_once() {
    const int ranks = group_.size();
    data_.fill_(group_.rank() + 1);
    if (copies()) source_.fill_(1);
    run();
    const double expected = copies() ? 1 : ranks * (ranks + 1) / 2.0;
    if (!data_.eq(expected).all().item<bool>()) {
      throw Error(ErrorKind::internal, fmt::format("{}: a wrong result of {} bytes", engine_, data_.nbytes()));
    }
    data_.zero_();
  }

  void run() {
    if (copies()) {
      std::memcpy(data_.mutable_data_ptr(), source_.const_data_ptr(), data_.nbytes());
    } else {
      group_.all_reduce(data_);
    }
  }

  const ProcessGroup group_;
  const std::string engine_;
  at::Tensor data_;
  at::Tensor source_;  // of a copy
};

void run_rank(const std::string& engine) {
  const auto world = lockstep::init_process_group();
  at::set_num_threads(1);
  world.group().all_reduce(at::zeros({1}));
  Operation operation(world.group(), engine);
  bench::serve(world.group(), "run", bench::OfRanks::slowest,
               [&](std::int64_t bytes, std::int64_t repetitions, std::int64_t calls) {
                 return operation.measure(bytes, repetitions, calls);
               });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw Error(ErrorKind::invalid_argument, "usage: bench_collective_worker ENGINE RANKS");
    const std::string engine = argv[1];
    const bool launched = std::getenv("RANK") != nullptr && std::getenv("LOCKSTEP_SPAWN") == nullptr;
    if (launched) {
      run_rank(engine);
    } else {
      lockstep::spawn(argc, argv, [&](int) { run_rank(engine); },
                      {.nprocs = std::atoi(argv[2]), .threads_per_rank = 1});
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_collective_worker: %s\n", error.what());
    return 1;
  }
}
