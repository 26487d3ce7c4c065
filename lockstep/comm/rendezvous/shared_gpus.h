// Which GPU a process uses, and ranks that use the same one. libtorch -> UUID -> registration -> members of all ranks.
// Thread-safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/rendezvous/rendezvous.h"

namespace lockstep::internal {

// What tells a GPU from all others, whatever CUDA_VISIBLE_DEVICES and containers call it: its UUID, without
// nvidia-smi's prefix "GPU-". `device`: torch's number; -1: the current one. Empty if libtorch does not know, and for
// a MIG part.
std::string gpu_uuid(int device);

// Of each GPU that several ranks use: the lowest of them, and a sentence that names all. Pure.
std::vector<std::pair<int, std::string>> shared_gpus(const std::vector<Member>& members);

}  // namespace lockstep::internal
