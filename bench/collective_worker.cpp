// Times collectives of Lockstep, or copies, when it is told to; a Worker of bench_all_reduce.
//   bench_collective_worker native|native-ordinary|memcpy|memcpy-alone RANKS [OPERATION [DTYPE]]
// Started by a launcher, it is one of the launcher's ranks; else it starts RANKS of them. It is ready once a first
// all-reduce is done, and takes "run BYTES REPETITIONS CALLS".
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "bench/serve.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/job/launch/spawn.h"

namespace {

using lockstep::Error;
using lockstep::ErrorKind;
using lockstep::ProcessGroup;

enum class Kind { all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, copy };

struct Settings {
  std::string engine;
  Kind kind = Kind::all_reduce;
  at::ScalarType dtype = at::kFloat;
};

Kind kind_of(std::string_view operation) {
  if (operation == "all_reduce") return Kind::all_reduce;
  if (operation == "all_gather") return Kind::all_gather;
  if (operation == "reduce_scatter") return Kind::reduce_scatter;
  if (operation == "broadcast") return Kind::broadcast;
  if (operation == "all_to_all") return Kind::all_to_all;
  throw Error(ErrorKind::invalid_argument, fmt::format("there is no operation '{}'", operation));
}

// The operation that is timed, on memory of one size. `bytes` are those of its longer side.
class Operation {
 public:
  Operation(const ProcessGroup& group, const Settings& settings)
      : group_(group),
        engine_(settings.engine),
        kind_(settings.engine.starts_with("memcpy") ? Kind::copy : settings.kind),
        dtype_(settings.dtype) {}

  std::vector<double> measure(std::int64_t bytes, std::int64_t repetitions, std::int64_t calls) {
    if (bytes_ != bytes) allocate(bytes);
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
  at::Tensor make(std::int64_t count) const {
    const at::Tensor made = engine_ == "native" ? group_.empty({count}, dtype_) : at::empty({count}, dtype_);
    if (engine_ == "native" && group_.size() > 1 && !group_.is_shared(made)) {
      throw Error(ErrorKind::internal, fmt::format("{} bytes of shared memory could not be allocated", made.nbytes()));
    }
    return made;
  }

  void allocate(std::int64_t bytes) {
    const std::int64_t ranks = group_.size();
    const auto element = static_cast<std::int64_t>(elementSize(dtype_));
    const std::int64_t count = std::max(bytes / element, ranks) / ranks * ranks;
    bytes_ = bytes;
    whole_ = other_ = part_ = at::Tensor();
    whole_ = make(count);
    if (kind_ == Kind::copy || kind_ == Kind::all_to_all) other_ = make(count);
    if (kind_ == Kind::all_gather || kind_ == Kind::reduce_scatter) part_ = make(count / ranks);
    parts_ = whole_.chunk(ranks);
    other_parts_ = other_.defined() ? other_.chunk(ranks) : std::vector<at::Tensor>();
  }

  // Checks the result of one repetition; then leaves zeros, which stay zeros however often they are added up.
  void check_once() {
    const int ranks = group_.size();
    whole_.fill_(kind_ == Kind::copy ? 0 : group_.rank() + 1);
    if (other_.defined()) other_.fill_(1);
    if (part_.defined()) part_.fill_(group_.rank() + 1);
    run();
    const int sum = ranks * (ranks + 1) / 2;
    bool right = true;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      const at::Tensor& result = kind_ == Kind::reduce_scatter ? part_
                                 : kind_ == Kind::all_to_all   ? other_parts_[at]
                                                               : parts_[at];
      const bool by_rank = kind_ == Kind::all_gather || kind_ == Kind::all_to_all;
      const bool of_one = kind_ == Kind::copy || kind_ == Kind::broadcast;
      right = right && result.eq(of_one ? 1 : by_rank ? rank + 1 : sum).all().item<bool>();
    }
    if (!right) throw Error(ErrorKind::internal, fmt::format("{}: a wrong result of {} bytes", engine_, bytes_));
    whole_.zero_();
    if (part_.defined()) part_.zero_();
  }

  void run() {
    switch (kind_) {
      case Kind::all_reduce: return group_.all_reduce(whole_);
      case Kind::broadcast: return group_.broadcast(whole_);
      case Kind::all_gather: return group_.all_gather_into(whole_, part_);
      case Kind::reduce_scatter: return group_.reduce_scatter(part_, whole_);
      case Kind::all_to_all: return group_.all_to_all(other_parts_, parts_);
      case Kind::copy: std::memcpy(whole_.mutable_data_ptr(), other_.const_data_ptr(), whole_.nbytes());
    }
  }

  const ProcessGroup group_;
  const std::string engine_;
  const Kind kind_;
  const at::ScalarType dtype_;
  std::int64_t bytes_ = 0;
  at::Tensor whole_, part_, other_;
  std::vector<at::Tensor> parts_, other_parts_;
};

void run_rank(const Settings& settings) {
  const auto world = lockstep::init_process_group();
  at::set_num_threads(1);
  world.group().all_reduce(at::zeros({1}));
  Operation operation(world.group(), settings);
  bench::serve(world.group(), "run", bench::OfRanks::slowest,
               [&](std::int64_t bytes, std::int64_t repetitions, std::int64_t calls) {
                 return operation.measure(bytes, repetitions, calls);
               });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 3 || argc > 5) {
      throw Error(ErrorKind::invalid_argument, "usage: bench_collective_worker ENGINE RANKS [OPERATION [DTYPE]]");
    }
    Settings settings{.engine = argv[1]};
    if (argc > 3) settings.kind = kind_of(argv[3]);
    if (argc > 4 && std::string_view(argv[4]) == "bfloat16") settings.dtype = at::kBFloat16;
    const bool launched = std::getenv("RANK") != nullptr && std::getenv("LOCKSTEP_SPAWN") == nullptr;
    if (launched) {
      run_rank(settings);
    } else {
      lockstep::spawn(argc, argv, [&](int) { run_rank(settings); },
                      {.nprocs = std::atoi(argv[2]), .threads_per_rank = 1});
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_collective_worker: %s\n", error.what());
    return 1;
  }
}
