// The engines that bench_all_reduce compares, each as the command of its worker.
#pragma once

#include <string>
#include <vector>

namespace bench {

struct EngineCommand {
  std::string name;
  int ranks = 1;
  std::vector<std::string> command;
};

// native            Lockstep on tensors in the memory that the ranks share, where gradients lie
// native-ordinary   Lockstep on tensors anywhere else
// gloo              PyTorch's own process group, from Python
// openmpi, mpich    MPI_Allreduce in place, as far as they are installed
// memcpy            not an all-reduce: every rank copies as many bytes, all at once; memcpy-alone: one does
// `wanted`: names, or "native", "mpi" and "memcpy" for all of a kind, or "all".
// `hosts`: where ranks run, in the words of on_hosts.py, or empty for this host; between hosts there are
// native-ordinary, gloo and openmpi.
// Throws Error{invalid_argument} for an unknown name, or one that is not installed (except by "all" and "mpi").
std::vector<EngineCommand> engine_commands(const std::vector<std::string>& wanted, int ranks, const std::string& hosts);

}  // namespace bench
