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

struct EngineSettings {
  int ranks = 2;
  std::string operation = "all_reduce";
  std::string dtype = "float32";
  std::string hosts = {};
};

// native            Lockstep on tensors in the memory that the ranks share, where gradients lie
// native-ordinary   Lockstep on tensors anywhere else
// python            Lockstep as a backend of torch.distributed, from Python
// gloo              PyTorch's own process group, from Python
// openmpi, mpich    MPI's own, all-reduces in place, as far as they are installed; not for bfloat16
// tcp               Lockstep over TCP on one host; tcp-unchecked: without checksums. Not among "all"
// memcpy            not a collective: every rank copies as many bytes, all at once; memcpy-alone: one does
// `wanted`: names, or "native", "mpi" and "memcpy" for all of a kind, or "all".
// hosts: where ranks run, in the words of on_hosts.py, or empty for this host; between hosts there are native-ordinary,
// gloo and openmpi.
// Throws Error{invalid_argument} for an unknown name, or one that is not installed (except by "all" and "mpi").
// operation, dtype: all_reduce, all_gather, reduce_scatter, broadcast or all_to_all, of float32 or bfloat16.
std::vector<EngineCommand> engine_commands(const std::vector<std::string>& wanted, const EngineSettings& settings);

}  // namespace bench
