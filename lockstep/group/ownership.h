// The rule of ownership: memory is reduced where it lies only if nobody else can reach it and it is listed once; else
// it is copied. Here is the first half of it. Pure; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace lockstep {

// Whether the tensor's bytes belong to it alone: no view, no alias and no copy-on-write twin shares its storage, and
// the storage owns its memory instead of borrowing it (at::from_blob). known_holders: how many tensors, this one
// included, hold the storage with the caller's knowledge. False for a tensor that is undefined or has no storage.
bool owns_its_memory(const at::Tensor& tensor, std::size_t known_holders = 1);

}  // namespace lockstep
