#include "lockstep/comm/collective/reduce.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

namespace lockstep::internal {
namespace {

// Compiled once, for the plainest CPU: fused multiplications would round differently.
template <class T>
void multiply_complex(std::span<std::byte* const> outputs, std::span<const std::byte* const> inputs,
                      std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T product[2];
    std::memcpy(product, inputs[0] + i * sizeof product, sizeof product);
    for (std::size_t row = 1; row < inputs.size(); ++row) {
      T factor[2];
      std::memcpy(factor, inputs[row] + i * sizeof factor, sizeof factor);
      const T real = product[0] * factor[0] - product[1] * factor[1];
      const T imaginary = product[0] * factor[1] + product[1] * factor[0];
      product[0] = real;
      product[1] = imaginary;
    }
    for (std::byte* output : outputs) std::memcpy(output + i * sizeof product, product, sizeof product);
  }
}

// What is reduced at once: few enough rows of it for the fastest cache.
constexpr std::size_t kTreeBytes = 2048;

// Level by level, in scratch memory; only the last pair goes to the outputs, since they may be the inputs.
void reduce_tree(const Collective& c, std::span<std::byte* const> outputs, std::span<const std::byte* const> inputs,
                 std::size_t count) {
  const std::size_t element = element_size(c.dtype);
  const std::size_t block = std::min(count, kTreeBytes / element);
  std::vector<std::byte> scratch(inputs.size() / 2 * block * element);
  std::vector<const std::byte*> rows(inputs.size());
  std::vector<std::byte*> targets(outputs.size());
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t elements = std::min(block, count - begin);
    for (std::size_t i = 0; i < inputs.size(); ++i) rows[i] = inputs[i] + begin * element;
    for (std::size_t pairs = inputs.size() / 2; pairs > 1; pairs /= 2) {
      for (std::size_t i = 0; i < pairs; ++i) {
        std::byte* const target = scratch.data() + i * block * element;
        reduce_rows({&target, 1}, {&rows[2 * i], 2}, elements, c.dtype, c.reduce, 2);
        rows[i] = target;
      }
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) targets[i] = outputs[i] + begin * element;
    reduce_rows(targets, {rows.data(), 2}, elements, c.dtype, c.reduce, 2);
  }
}

template <class T>
T identity_of(ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  switch (op) {
    case ReduceOp::product: return T{1};
    case ReduceOp::min: return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case ReduceOp::max: return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case ReduceOp::band: return static_cast<T>(-1);
    default: return T{};
  }
}

// One element; a complex number begins with its real part.
void write_identity(std::byte* to, DType dtype, ReduceOp op) {
  const auto put = [to](auto value) { std::memcpy(to, &value, sizeof value); };
  switch (dtype) {
    case DType::f16:
    case DType::bf16: {
      const float value = identity_of<float>(op);
      return narrow(&value, to, 1, dtype);
    }
    case DType::f32:
    case DType::c64: return put(identity_of<float>(op));
    case DType::f64:
    case DType::c128: return put(identity_of<double>(op));
    case DType::i32: return put(identity_of<std::int32_t>(op));
    case DType::i64: return put(identity_of<std::int64_t>(op));
    case DType::u8: return put(identity_of<std::uint8_t>(op));
    case DType::i8: return put(identity_of<std::int8_t>(op));
    case DType::i16: return put(identity_of<std::int16_t>(op));
    case DType::u16: return put(identity_of<std::uint16_t>(op));
    case DType::u32: return put(identity_of<std::uint32_t>(op));
    case DType::u64: return put(identity_of<std::uint64_t>(op));
    case DType::boolean: return put(identity_of<bool>(op));
    case DType::opaque: return;
  }
}

void fill_identity(std::span<std::byte* const> outputs, std::size_t count, DType dtype, ReduceOp op) {
  alignas(16) std::byte one[16] = {};
  write_identity(one, dtype, op);
  const std::size_t element = element_size(dtype);
  for (std::byte* output : outputs) {
    for (std::size_t i = 0; i < count; ++i) std::memcpy(output + i * element, one, element);
  }
}

}  // namespace

void reduce_rows(std::span<std::byte* const> outputs, std::span<const std::byte* const> inputs, std::size_t count,
                 DType dtype, ReduceOp op, int divisor) {
  if (inputs.empty()) return fill_identity(outputs, count, dtype, op);
  if (!is_complex(dtype)) return reduce_vectors(outputs, inputs, count, dtype, op, divisor);
  const bool is_double = dtype == DType::c128;
  if (op == ReduceOp::product) {
    return is_double ? multiply_complex<double>(outputs, inputs, count)
                     : multiply_complex<float>(outputs, inputs, count);
  }
  // To add complex numbers and to divide them is to do so with their parts.
  reduce_vectors(outputs, inputs, 2 * count, is_double ? DType::f64 : DType::f32, op, divisor);
}

void reduce_all(const Collective& collective, std::span<std::byte* const> outputs,
                std::span<const std::byte* const> inputs, std::size_t count) {
  const bool pairwise = collective.order == Order::tree && inputs.size() > 2;
  if (!pairwise) {
    return reduce_rows(outputs, inputs, count, collective.dtype, collective.reduce, static_cast<int>(inputs.size()));
  }
  reduce_tree(collective, outputs, inputs, count);
}

}  // namespace lockstep::internal
