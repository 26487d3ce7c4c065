#include "lockstep/ddp/hooks/hook_input.h"

#include <c10/core/ScalarType.h>

#include "lockstep/base/error.h"

namespace lockstep {

std::string name_of(const GradBucket& bucket, std::string_view part) {
  return bucket_call_name(bucket.index(), bucket.names(), part);
}

void require_real(const GradBucket& bucket, std::string_view hook) {
  const c10::ScalarType type = bucket.buffer().scalar_type();
  if (type == c10::kFloat || type == c10::kDouble || type == c10::kHalf || type == c10::kBFloat16) return;
  throw Error(ErrorKind::invalid_argument,
              std::string(hook) + " takes gradients of type Float, Double, Half or BFloat16, and those of bucket " +
                  std::to_string(bucket.index()) + " are of type " + c10::toString(type) +
                  "; use all_reduce_hook for this model");
}

}  // namespace lockstep
