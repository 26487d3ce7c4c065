#include "lockstep/comm/group/numbers.h"

#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/observe/flight_record.h"
#include "lockstep/comm/collective/reduce.h"
#include "lockstep/comm/group/process_group.h"

namespace lockstep {

using namespace internal;

namespace {

// What ranks compare, besides the number of bytes: "all_reduce of 2 numbers: loss, sum of float64 int64".
std::string name_of(std::span<const NumberRef> numbers, ReduceOp op, std::string_view users) {
  std::string name(kNumbersName);
  name += numbers.size() == 1 ? "a number: " : std::to_string(numbers.size()) + " numbers: ";
  if (!users.empty()) name += std::string(users) + ", ";
  name += to_string(op);
  name += " of";
  for (const NumberRef& number : numbers) {
    name += ' ';
    name += to_string(number.dtype);
  }
  return name;
}

void check_operation(std::span<const NumberRef> numbers, ReduceOp op) {
  for (const NumberRef& number : numbers) {
    if (supports(op, number.dtype)) continue;
    throw Error(
        ErrorKind::invalid_argument,
        op == ReduceOp::avg
            ? "all_reduce of numbers: avg needs a floating-point type; for integers use sum, and divide the result"
            : "all_reduce of numbers: " + std::string(to_string(op)) + " is not defined for " +
                  std::string(to_string(number.dtype)));
  }
}

using Slot = std::uint64_t;  // as it holds any number, and is aligned for it

at::Tensor bytes_of(std::vector<Slot>& slots) {
  return at::from_blob(slots.data(), {static_cast<std::int64_t>(slots.size() * sizeof(Slot))}, at::kByte);
}

}  // namespace

void Collectives::all_reduce_numbers(std::span<const NumberRef> numbers, ReduceOp op,
                                     const CallOptions& options) const {
  check_operation(numbers, op);
  std::vector<Slot> mine(numbers.size()), all(numbers.size() * static_cast<std::size_t>(size()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    std::memcpy(&mine[i], numbers[i].value, element_size(numbers[i].dtype));
  }
  const std::string name = name_of(numbers, op, options.name);
  CallOptions named = options;
  named.name = name;
  all_gather_into(bytes_of(all), bytes_of(mine), named);
  std::vector<const std::byte*> rows(static_cast<std::size_t>(size()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      rows[rank] = reinterpret_cast<const std::byte*>(&all[rank * numbers.size() + i]);
    }
    auto* const result = static_cast<std::byte*>(numbers[i].value);
    reduce_rows({&result, 1}, rows, 1, numbers[i].dtype, op, size());
  }
}

double ProcessGroup::weighted_mean(double value, double weight, const CallOptions& options) const {
  struct {
    double sum, weight;
  } totals{weight == 0 ? 0 : value * weight, weight};  // a rank with nothing may have NaN as its mean
  all_reduce(totals, ReduceOp::sum, options);
  return totals.sum / totals.weight;
}

}  // namespace lockstep
