// A RowReducer reduces the rows of a chain of ranks, of which a rank has some: the first may be the partial sum of the
// ranks before, and the result may be one for the ranks behind. Partial sums of float16 and bfloat16 are float32, and
// are rounded at the end only; averages are divided at the end. So the bits are those of all rows reduced at once.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/collective/link_plan.h"

namespace lockstep::internal {

class RowReducer {
 public:
  // Borrows the collective.
  void begin(const Collective& collective, const ReductionPlan& plan);

  // Bytes of one element: of a row, of a partial sum, of what reduce() writes.
  std::size_t row_element() const { return row_element_; }
  std::size_t sum_element() const { return sum_element_; }
  std::size_t output_element() const { return gives_sum_ ? sum_element_ : row_element_; }
  // How many elements reduce() can take at once, of `count`.
  std::size_t at_once(std::size_t count) const;
  // rows: the partial sum, if the plan says so, then rows in rank order.
  void reduce(std::span<const std::byte*> rows, std::byte* output, std::size_t count);

 private:
  bool is_wide() const { return sum_element_ != row_element_ && (takes_sum_ || gives_sum_); }

  const Collective* collective_ = nullptr;
  int ranks_ = 1;  // whose rows are in the result
  bool takes_sum_ = false;
  bool gives_sum_ = false;
  std::size_t row_element_ = 1;
  std::size_t sum_element_ = 1;
  std::vector<float> wide_;
};

}  // namespace lockstep::internal
