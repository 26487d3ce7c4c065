#include "lockstep/group/numbers.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/group/process_group.h"

namespace lockstep {
namespace {

// What ranks compare, besides the number of bytes: "loss, sum of f64 i64".
std::string name_of(std::span<const NumberRef> numbers, ReduceOp op, std::string_view users) {
  std::string name(users.empty() ? "numbers" : users);
  name += ", ";
  name += to_string(op);
  name += " of";
  for (const NumberRef& number : numbers) {
    name += ' ';
    name += static_cast<char>(number.kind);
    name += std::to_string(8 * number.bytes);
  }
  return name;
}

void check_operation(std::span<const NumberRef> numbers, ReduceOp op) {
  using enum ReduceOp;
  const bool known = op == sum || op == avg || op == product || op == min || op == max;
  const bool floating = std::all_of(numbers.begin(), numbers.end(),
                                    [](const NumberRef& each) { return each.kind == NumberRef::Kind::floating; });
  if (known && (op != avg || floating)) return;
  throw Error(ErrorKind::invalid_argument,
              op == avg ? "all_reduce of numbers: avg is for floating types; sum integers and divide"
                        : "all_reduce of numbers: use sum, avg, product, min or max, or a tensor");
}

template <class T>
T combined(T a, T b, ReduceOp op) {
  if constexpr (std::is_same_v<T, bool>) {  // as of tensors: a sum is "or", a product is "and"
    return op == ReduceOp::sum || op == ReduceOp::max ? a || b : a && b;
  } else {
    if (op == ReduceOp::min || op == ReduceOp::max) {
      if (a != a || b != b) return a != a ? a : b;  // NaN
      return op == ReduceOp::min ? std::min(a, b) : std::max(a, b);
    }
    if constexpr (std::is_integral_v<T>) {  // wraps
      const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
      return static_cast<T>(op == ReduceOp::product ? x * y : x + y);
    } else {
      return op == ReduceOp::product ? a * b : a + b;
    }
  }
}

// rows: of all ranks, each `stride` bytes behind the one before, this number first.
template <class T>
void reduce_one(void* out, const char* rows, std::size_t stride, int ranks, ReduceOp op) {
  T result{};
  std::memcpy(&result, rows, sizeof(T));
  for (int rank = 1; rank < ranks; ++rank) {
    T next{};
    std::memcpy(&next, rows + static_cast<std::size_t>(rank) * stride, sizeof(T));
    result = combined(result, next, op);
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (op == ReduceOp::avg) result /= static_cast<T>(ranks);
  }
  std::memcpy(out, &result, sizeof(T));
}

using Reduce = void (*)(void*, const char*, std::size_t, int, ReduceOp);

Reduce reduction_of(const NumberRef& number) {
  const std::size_t bytes = number.bytes;
  switch (number.kind) {
    case NumberRef::Kind::boolean: return reduce_one<bool>;
    case NumberRef::Kind::floating: return bytes == 4 ? reduce_one<float> : reduce_one<double>;
    case NumberRef::Kind::integer:
      return bytes == 1   ? reduce_one<std::int8_t>
             : bytes == 2 ? reduce_one<std::int16_t>
             : bytes == 4 ? reduce_one<std::int32_t>
                          : reduce_one<std::int64_t>;
    case NumberRef::Kind::natural: break;
  }
  return bytes == 1   ? reduce_one<std::uint8_t>
         : bytes == 2 ? reduce_one<std::uint16_t>
         : bytes == 4 ? reduce_one<std::uint32_t>
                      : reduce_one<std::uint64_t>;
}

at::Tensor bytes_of(std::string& text) {
  return at::from_blob(text.data(), {static_cast<std::int64_t>(text.size())}, at::kByte);
}

}  // namespace

void ProcessGroup::all_reduce_numbers(std::span<const NumberRef> numbers, ReduceOp op,
                                      const CallOptions& options) const {
  check_operation(numbers, op);
  std::string mine;
  for (const NumberRef& each : numbers) mine.append(static_cast<const char*>(each.value), each.bytes);
  std::string all(mine.size() * static_cast<std::size_t>(size()), '\0');
  const std::string name = name_of(numbers, op, options.name);
  CallOptions named = options;
  named.name = name;
  all_gather_into(bytes_of(all), bytes_of(mine), named);
  std::size_t at = 0;
  for (const NumberRef& each : numbers) {
    reduction_of(each)(each.value, all.data() + at, mine.size(), size(), op);
    at += each.bytes;
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
