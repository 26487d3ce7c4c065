// A ProcessGroup is a set of ranks that make the same collective calls in the same order. bucket -> process group ->
// collective. A copyable handle; the group ends when the last handle is destroyed, without communicating (unfinished
// calls are aborted). Its base Collectives has the collectives of tensors, and GroupHandle, the base of that, the rest:
// messages, memory, abort(), and post(), poll() and wait() for gradients. Thread-safe; calls from several threads of
// one rank run one after the other, so the caller must make all ranks agree on the order.
//
// Every call blocks until this rank's result is complete, except the *_async forms, which return at once and run in
// issue order on the group's own thread; their tensors must not be touched until the Work is done. Each fails within
// its timeout, which runs from the call on, including the wait for its turn: Error{invalid_argument} before anything is
// sent, {desync} on every rank if ranks make different calls, {peer_lost} naming a rank that died or left, {timeout}
// naming the missing ranks, {aborted}, {corrupt_data} naming the ranks between which data was corrupted. After any but
// the first the group remains failed, and its later calls throw the same error. Results are bitwise equal on all ranks;
// reductions add in rank order (see Engine); backends other than the native one have their own order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/group/collectives.h"
#include "lockstep/comm/group/object_bytes.h"

namespace lockstep {

class ProcessGroup : public Collectives {
 public:
  using Collectives::Collectives;

  // sum(value * weight) / sum(weight) over all ranks, the same on all of them; NaN if no rank has weight. A value of
  // weight 0 does not count, even if it is NaN.
  double weighted_mean(double value, double weight, const CallOptions& options = {}) const;
  // One tensor of every rank, in rank order. First dimensions may differ between ranks, which exchange them first; if
  // dtypes or other dimensions differ, all ranks get Error{invalid_argument} that lists dtype and shape of each, and
  // the group remains usable. A tensor without dimensions counts as one row.
  std::vector<at::Tensor> all_gather_v(const at::Tensor& input, const CallOptions& options = {}) const;
  // Several tensors of one dtype in one collective. Returns, in rank order, the tensors of each rank.
  std::vector<std::vector<at::Tensor>> all_gather_coalesced(at::TensorList inputs,
                                                            const CallOptions& options = {}) const;
  // inputs[i] has, along its first dimension, a part of outputs[i]'s shape for each rank, which gets its reduction.
  void reduce_scatter_coalesced(at::TensorList outputs, at::TensorList inputs, ReduceOp op = ReduceOp::sum,
                                const CallOptions& options = {}) const;
  void reduce_scatter_coalesced(at::TensorList outputs, at::TensorList inputs, const CallOptions& options) const {
    reduce_scatter_coalesced(outputs, inputs, ReduceOp::sum, options);
  }
  // input_splits[i] rows of the input go to rank i, output_splits[i] rows of the output come from rank i. Without
  // splits all parts are equal.
  void all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                         const std::vector<std::int64_t>& output_splits = {},
                         const std::vector<std::int64_t>& input_splits = {}, const CallOptions& options = {}) const;
  void all_to_all_single(const at::Tensor& output, const at::Tensor& input, const CallOptions& options) const {
    all_to_all_single(output, input, {}, {}, options);
  }
  // Multiplies by this rank's factor before the sum: a number, or a tensor of one element. Error{invalid_argument} if
  // memory would be multiplied twice.
  void all_reduce_premul_sum(at::TensorList tensors, const at::Tensor& factor, const CallOptions& options = {}) const;
  void all_reduce_premul_sum(at::TensorList tensors, double factor, const CallOptions& options = {}) const;
  // The sum of all ranks' sparse (COO) tensors of one shape and dtype, coalesced; an element that several ranks have is
  // added in rank order. If an index of a rank is out of range, all ranks get Error{invalid_argument} that names it,
  // and the group remains usable.
  at::Tensor all_reduce_sparse(const at::Tensor& sparse, const CallOptions& options = {}) const;

  // Objects: what an ObjectCodec turns into bytes; see objects.h, also for their errors. In rank order.
  template <class T>
  std::vector<T> all_gather_object(const T& mine, const CallOptions& options = {}) const {
    return internal::all_decoded<T>(*this, internal::all_gather_bytes(*this, internal::encoded(*this, mine), options));
  }
  // The same on root; empty elsewhere.
  template <class T>
  std::vector<T> gather_object(const T& mine, int root = 0, const CallOptions& options = {}) const {
    return internal::all_decoded<T>(*this, internal::gather_bytes_to(*this, internal::encoded(*this, mine), root,
                                                                     internal::kMostObjectBytes, options));
  }
  template <class T>
  std::vector<T> gather_object(const T& mine, const CallOptions& options) const {
    return gather_object(mine, 0, options);
  }
  // The object of root; `mine` is used there only.
  template <class T>
  T broadcast_object(const T& mine, int root = 0, const CallOptions& options = {}) const {
    const std::string bytes = rank() == root ? internal::encoded(*this, mine) : std::string();
    return internal::decoded<T>(*this, internal::broadcast_bytes(*this, bytes, root, options));
  }
  template <class T>
  T broadcast_object(const T& mine, const CallOptions& options) const {
    return broadcast_object(mine, 0, options);
  }
  // Object rank() of the list on root, which has one for each rank.
  template <class T>
  T scatter_object(const std::vector<T>& objects, int root = 0, const CallOptions& options = {}) const {
    std::vector<std::string> all;
    for (const T& object : objects) all.push_back(internal::encoded(*this, object));
    return internal::decoded<T>(*this, internal::scatter_bytes_from(*this, all, root, options));
  }
  template <class T>
  T scatter_object(const std::vector<T>& objects, const CallOptions& options) const {
    return scatter_object(objects, 0, options);
  }
  // Whether all ranks have the same text, one fact a line: the first difference between that of a rank and that of rank
  // 0, the same on all ranks; nullopt if all are equal, which takes two exchanges of 8 bytes.
  struct Difference {
    int rank = 0;          // the lowest that differs
    std::size_t line = 0;  // counted from 0
    std::string on_rank_0;
    std::string on_rank;  // "nothing" where a text has ended
  };
  std::optional<Difference> first_difference(const std::string& mine) const;

  // New groups of some of these ranks, with separate collectives; any number may be in use at once. All ranks of this
  // group call it, including non-members, which get nullopt. Errors as of a collective, and Error{invalid_argument} if
  // the group has no origin.
  //   split: of all ranks that give the same color, ordered by key, then by rank; a negative color joins none
  //   new_group: of the given ranks, in the given order, which must be the same on all ranks
  // options: instead of this group's, such as {.backend = "gloo", .timeout = 10s}; the same on all ranks of this group.
  std::optional<ProcessGroup> split(int color, int key = 0) const;
  std::optional<ProcessGroup> split(int color, int key, const GroupOptions& options) const;
  std::optional<ProcessGroup> new_group(const std::vector<int>& ranks) const;
  std::optional<ProcessGroup> new_group(const std::vector<int>& ranks, const GroupOptions& options) const;

 private:
  std::optional<ProcessGroup> part(int color, int key, const GroupOptions& options, std::string_view call,
                                   Deadline deadline) const;
  int key_in(const std::vector<int>& ranks, Deadline deadline) const;
};

}  // namespace lockstep
