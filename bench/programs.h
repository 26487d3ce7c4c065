// Where the benchmarks find the programs that they start: next to themselves, in bench/ of the source tree, and in
// PATH.
#pragma once

#include <string>
#include <vector>

namespace bench {

// A program of this build: "bench_train_worker" -> ".../bin/bench_train_worker".
std::string built_program(const std::string& name);
// A script of bench/: "torch_worker.py" -> "<source>/bench/torch_worker.py".
std::string script(const std::string& name);
// The Python that has PyTorch: LOCKSTEP_BENCH_PYTHON, else the project's own environment's, else python3.
std::string python();
// The command with this build's backend for torch.distributed in Python's sight, and the backend's file.
std::vector<std::string> with_own_backend(std::vector<std::string> command);
std::string own_backend();

// The file that a name with a slash is, or that a name without one means in PATH. Throws
// lockstep::internal::ExecFailed.
std::string path_of(const std::string& program);
bool exists(const std::string& program);

}  // namespace bench
