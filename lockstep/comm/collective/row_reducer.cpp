#include "lockstep/comm/collective/row_reducer.h"

#include <algorithm>

#include "lockstep/comm/collective/reduce.h"

namespace lockstep::internal {
namespace {

// How many float16 or bfloat16 elements are widened at once: few enough for the fastest cache.
constexpr std::size_t kWideElements = 1024;

}  // namespace

void RowReducer::begin(const Collective& collective, const ReductionPlan& plan) {
  collective_ = &collective;
  ranks_ = plan.end_row;
  takes_sum_ = plan.carried_from >= 0;
  gives_sum_ = plan.carried_to >= 0;
  const bool is_half = collective.dtype == DType::f16 || collective.dtype == DType::bf16;
  row_element_ = element_size(collective.dtype);
  sum_element_ = is_half ? sizeof(float) : row_element_;
}

std::size_t RowReducer::at_once(std::size_t count) const { return is_wide() ? std::min(count, kWideElements) : count; }

void RowReducer::reduce(std::span<const std::byte*> rows, std::byte* output, std::size_t count) {
  const DType dtype = collective_->dtype;
  if (collective_->order == Order::tree) return reduce_all(*collective_, {&output, 1}, rows, count);
  const bool divides_later = gives_sum_ && collective_->reduce == ReduceOp::avg;
  const ReduceOp op = divides_later ? ReduceOp::sum : collective_->reduce;
  if (!is_wide()) return reduce_rows({&output, 1}, rows, count, dtype, op, ranks_);
  wide_.resize((rows.size() + 1) * kWideElements);
  for (std::size_t i = takes_sum_ ? 1 : 0; i < rows.size(); ++i) {
    float* const widened = wide_.data() + i * kWideElements;
    widen(rows[i], widened, count, dtype);
    rows[i] = reinterpret_cast<const std::byte*>(widened);
  }
  float* const last = wide_.data() + rows.size() * kWideElements;
  std::byte* const sum = gives_sum_ ? output : reinterpret_cast<std::byte*>(last);
  reduce_rows({&sum, 1}, rows, count, DType::f32, op, ranks_);
  if (!gives_sum_) narrow(last, output, count, dtype);
}

}  // namespace lockstep::internal
