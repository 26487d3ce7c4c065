// What is known of a tensor's memory. The rule of ownership: memory is reduced where it lies only if nobody else can
// reach it and it is listed once; else it is copied. Here is the first half of it. Pure; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace lockstep::internal {

// Whether the tensor's bytes belong to it alone: no view, no alias and no copy-on-write twin shares its storage, and
// the storage owns its memory instead of borrowing it (at::from_blob). known_holders: how many tensors, this one
// included, hold the storage with the caller's knowledge. False for a tensor that is undefined or has no storage.
bool owns_its_memory(const at::Tensor& tensor, std::size_t known_holders = 1);

// Whether the memory of a dense tensor, read from front to back, is its elements in some order.
bool has_plain_memory(const at::Tensor& tensor);
// Whether that memory has the elements of `other`, of the same shape, in the other's order.
bool has_layout_of(const at::Tensor& tensor, const at::Tensor& other);
// The elements in the order in which they lie. REQUIRES: has_plain_memory().
at::Tensor flat(const at::Tensor& tensor);

}  // namespace lockstep::internal
