// A communication hook replaces the averaging of a bucket of gradients: it compresses, approximates, or measures.
// reducer -> GradBucket -> hook -> process group. After torch.distributed's register_comm_hook().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/group/process_group.h"

namespace lockstep {

namespace internal {

// "DDP report, wrapper 2, of backward". The first wrapper, which most programs have alone, is left out.
std::string name_of_backward(std::string what, std::string_view part, std::uint64_t wrapper);

}  // namespace internal

// "gradient bucket 3 (fc.weight, fc.bias), Q, wrapper 2, of backward": the name of its collectives, together with the
// number of the backward. So a rank that has skipped one, or calls its models in another order, is distinguished from
// the others. names: of its parameters, of which the first are shown.
std::string bucket_call_name(std::size_t index, const std::vector<std::string>& names, std::string_view part = {},
                             std::uint64_t wrapper = 1);

// The argument of a hook: gradients of one dtype, one after the other in a dense 1-d buffer, which the hook may change.
class GradBucket {
 public:
  GradBucket(std::size_t index, bool is_last, at::Tensor buffer, std::vector<at::Tensor> parameters,
             std::vector<std::string> names, std::uint64_t backward = 0, std::uint64_t wrapper = 1,
             bool is_weighted = false);

  std::size_t index() const { return index_; }  // in the order of reduction, the same on all ranks
  bool is_last() const { return is_last_; }     // of this backward
  // The number of this synchronised backward since the wrapper was created, the same on all ranks.
  std::uint64_t backward() const { return backward_; }
  // The number of the wrapper in the program, the same on all ranks.
  std::uint64_t wrapper() const { return wrapper_; }
  // Whether averages will be divided by the weights of all ranks, as with Weighting::samples: then they must be
  // averages over all ranks.
  bool is_weighted() const { return is_weighted_; }
  const at::Tensor& buffer() const { return buffer_; }
  void set_buffer(const at::Tensor& buffer);  // Error{invalid_argument} if it has another number of elements
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<std::string>& names() const { return names_; }
  // Views of the buffer with the parameters' shapes, in their order.
  std::vector<at::Tensor> gradients() const;
  // The name of a collective that averages it, beside the number of the backward: see bucket_call_name().
  std::string call_name(std::string_view part = {}) const { return bucket_call_name(index_, names_, part, wrapper_); }

 private:
  std::size_t index_;
  bool is_last_;
  at::Tensor buffer_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  std::uint64_t backward_;
  std::uint64_t wrapper_;
  bool is_weighted_;
};

// Error{invalid_argument} naming the hook if gradients are weighted: for hooks that do not average over all ranks, or
// that remember gradients.
void require_unweighted(const GradBucket& bucket, std::string_view hook);
// Error{invalid_argument} naming hook, bucket and type unless the gradients are real numbers of 16, 32 or 64 bits.
void require_real(const GradBucket& bucket, std::string_view hook);

// Blocks until the result is ready: as many elements as the bucket's buffer, of any floating or complex dtype, averaged
// over the ranks as the hook defines it.
using BucketResult = std::function<at::Tensor()>;
// Called during backward when a bucket's gradients are complete, in the same order on all ranks; begins the
// communication and returns at once, or when it is done. Results are requested at the end of backward, in that order.
// Runs on the thread of backward, which throws its exceptions.
using CommHook = std::function<BucketResult(GradBucket& bucket, const ProcessGroup& group)>;

}  // namespace lockstep
