#include "lockstep/comm/collective/reduce.h"

#include <cstdint>

// Highway includes this file once for each instruction set below and picks one of them at run time.
// SSSE3 is left out: a CPU without SSE4 gets the plain code.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lockstep/comm/collective/reduce_vectors.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::internal {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
// Rows: how elements are stored, and in which type they are computed with; whole vectors, or kLanes at a time. A Single
// is the same for one element.

template <class T, std::size_t kLanes = HWY_LANES(T)>
struct PlainRow {
  using Single = PlainRow<T, 1>;
  using Stored = T;
  using D = hn::CappedTag<T, kLanes>;
  static HWY_INLINE hn::Vec<D> load(const Stored* from) { return hn::LoadU(D(), from); }
  static HWY_INLINE void store(hn::Vec<D> value, Stored* to) { hn::StoreU(value, D(), to); }
};

template <std::size_t kLanes = HWY_LANES(float)>
struct BFloat16Row {
  using Single = BFloat16Row<1>;
  using Stored = std::uint16_t;
  using D = hn::CappedTag<float, kLanes>;
  using D16 = hn::Rebind<std::uint16_t, D>;
  using D32 = hn::RebindToUnsigned<D>;

  static HWY_INLINE hn::Vec<D> load(const Stored* from) {
    return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(D32(), hn::LoadU(D16(), from))));
  }
  static HWY_INLINE void store(hn::Vec<D> value, Stored* to) {
    const D32 d;
    const auto bits = hn::BitCast(d, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d, 0x7FFF)), odd));
    const auto is_nan = hn::RebindMask(d, hn::IsNaN(value));
    const auto result = hn::IfThenElse(is_nan, hn::Set(d, 0x7FC0), rounded);
    hn::StoreU(hn::DemoteTo(D16(), hn::BitCast(hn::RebindToSigned<D>(), result)), D16(), to);
  }
};

template <std::size_t kLanes = HWY_LANES(float)>
struct Float16Row {
  using Single = Float16Row<1>;
  using Stored = std::uint16_t;
  using D = hn::CappedTag<float, kLanes>;
  using D16 = hn::Rebind<std::uint16_t, D>;
  using D32 = hn::RebindToUnsigned<D>;
  using DI32 = hn::RebindToSigned<D>;

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_SSE4
  // No instruction converts float16 here, and Highway's replacement does not round to nearest.
  static HWY_INLINE hn::Vec<D> load(const Stored* from) {
    const D32 d;
    const auto bits = hn::PromoteTo(d, hn::LoadU(D16(), from));
    const auto magnitude = hn::And(bits, hn::Set(d, 0x7FFF));
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d, 0x8000)));
    const auto rebias = hn::Set(d, 112u << 23);
    const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), rebias);
    const auto subnormal = hn::Mul(hn::ConvertTo(D(), hn::BitCast(DI32(), magnitude)), hn::Set(D(), 0x1p-24f));
    auto result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x7BFF)), hn::Add(normal, rebias), normal);
    result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x0400)), hn::BitCast(d, subnormal), result);
    return hn::BitCast(D(), hn::Or(result, sign));
  }
  static HWY_INLINE void store(hn::Vec<D> value, Stored* to) {
    const D32 d;
    const auto bits = hn::BitCast(d, value);
    const auto magnitude = hn::And(bits, hn::Set(d, 0x7FFFFFFF));
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 0x8000));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1));
    const auto bias = hn::Set(d, 0xFFFu - (112u << 23));
    const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, bias), odd));
    // One float16 subnormal step is the last place of a float32 next to 0.5, so the addition rounds as wanted.
    const auto half = hn::Set(D(), 0.5f);
    const auto subnormal = hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(D(), magnitude), half)), hn::BitCast(d, half));
    const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 0x3FF));
    const auto is_nan = hn::Gt(magnitude, hn::Set(d, 0x7F800000));
    const auto huge = hn::IfThenElse(is_nan, hn::Or(payload, hn::Set(d, 0x7E00)), hn::Set(d, 0x7C00));
    auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x38800000)), subnormal, normal);
    result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x47800000)), result, huge);
    hn::StoreU(hn::DemoteTo(D16(), hn::BitCast(DI32(), hn::Or(result, sign))), D16(), to);
  }
#else
  using DF16 = hn::Rebind<hwy::float16_t, D>;
  static HWY_INLINE hn::Vec<D> load(const Stored* from) {
    return hn::PromoteTo(D(), hn::BitCast(DF16(), hn::LoadU(D16(), from)));
  }
  static HWY_INLINE void store(hn::Vec<D> value, Stored* to) {
    hn::StoreU(hn::BitCast(D16(), hn::DemoteTo(DF16(), value)), D16(), to);
  }
#endif
};

// Operations on vectors of type V.
template <class V>
struct Sum {
  static HWY_INLINE V apply(V a, V b) { return hn::Add(a, b); }
};

template <class V>
struct Product {
  static HWY_INLINE V apply(V a, V b) {
    using D = hn::DFromV<V>;
    using T = hn::TFromD<D>;
    if constexpr (sizeof(T) == 4 || hwy::IsFloat<T>()) {
      return hn::Mul(a, b);
    } else {  // no such vector instruction
      const D d;
      HWY_ALIGN T x[hn::MaxLanes(d)], y[hn::MaxLanes(d)];
      hn::Store(a, d, x);
      hn::Store(b, d, y);
      for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
        x[i] = static_cast<T>(static_cast<std::uint64_t>(x[i]) * static_cast<std::uint64_t>(y[i]));
      }
      return hn::Load(d, x);
    }
  }
};

template <class V>
inline constexpr bool kIsFloat = hwy::IsFloat<hn::TFromV<V>>();

// Of equal values the later one, which tells 0.0 from -0.0 the same way on every CPU; NaN if one of them is.
template <class V>
struct Min {
  static HWY_INLINE V apply(V a, V b) {
    if constexpr (kIsFloat<V>) return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
    if constexpr (!kIsFloat<V>) return hn::Min(a, b);
  }
};

template <class V>
struct Max {
  static HWY_INLINE V apply(V a, V b) {
    if constexpr (kIsFloat<V>) return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(a)), a, b);
    if constexpr (!kIsFloat<V>) return hn::Max(a, b);
  }
};

template <class V>
struct BitAnd {
  static HWY_INLINE V apply(V a, V b) { return hn::And(a, b); }
};

template <class V>
struct BitOr {
  static HWY_INLINE V apply(V a, V b) { return hn::Or(a, b); }
};

template <class V>
struct BitXor {
  static HWY_INLINE V apply(V a, V b) { return hn::Xor(a, b); }
};

// What happens to the accumulated value at the end.
template <class V>
struct Keep {
  static HWY_INLINE V apply(V value, V) { return value; }
};

template <class V>
struct Multiply {
  static HWY_INLINE V apply(V value, V factor) { return hn::Mul(value, factor); }
};

template <class V>
struct Divide {
  static HWY_INLINE V apply(V value, V divisor) { return hn::Div(value, divisor); }
};

struct Rows {
  std::span<std::byte* const> outputs;
  std::span<const std::byte* const> inputs;
  std::size_t count;
  double operand;  // of Multiply or Divide
};

// One vector of every row, at element i.
template <class Row, template <class> class Op, template <class> class Finish>
HWY_INLINE void reduce_at(const Rows& rows, std::size_t i) {
  using Stored = typename Row::Stored;
  using V = hn::Vec<typename Row::D>;
  V sum = Row::load(reinterpret_cast<const Stored*>(rows.inputs[0]) + i);
  for (std::size_t row = 1; row < rows.inputs.size(); ++row) {
    sum = Op<V>::apply(sum, Row::load(reinterpret_cast<const Stored*>(rows.inputs[row]) + i));
  }
  sum = Finish<V>::apply(sum, hn::Set(typename Row::D(), static_cast<hn::TFromV<V>>(rows.operand)));
  for (std::byte* output : rows.outputs) Row::store(sum, reinterpret_cast<Stored*>(output) + i);
}

// Takes four vectors of every row at a time, so that sums stay in registers and each row is read once.
template <class Row, template <class> class Op, template <class> class Finish = Keep>
void reduce(const Rows& rows) {
  using Stored = typename Row::Stored;
  using D = typename Row::D;
  using V = hn::Vec<D>;
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t n_inputs = rows.inputs.size();
  const auto operand = hn::Set(d, static_cast<hn::TFromD<D>>(rows.operand));
  std::size_t i = 0;
  for (; i + 4 * lanes <= rows.count; i += 4 * lanes) {
    const auto* in = reinterpret_cast<const Stored*>(rows.inputs[0]) + i;
    V a = Row::load(in), b = Row::load(in + lanes), c = Row::load(in + 2 * lanes), e = Row::load(in + 3 * lanes);
    for (std::size_t row = 1; row < n_inputs; ++row) {
      in = reinterpret_cast<const Stored*>(rows.inputs[row]) + i;
      a = Op<V>::apply(a, Row::load(in));
      b = Op<V>::apply(b, Row::load(in + lanes));
      c = Op<V>::apply(c, Row::load(in + 2 * lanes));
      e = Op<V>::apply(e, Row::load(in + 3 * lanes));
    }
    a = Finish<V>::apply(a, operand);
    b = Finish<V>::apply(b, operand);
    c = Finish<V>::apply(c, operand);
    e = Finish<V>::apply(e, operand);
    for (std::byte* output : rows.outputs) {
      auto* out = reinterpret_cast<Stored*>(output) + i;
      Row::store(a, out);
      Row::store(b, out + lanes);
      Row::store(c, out + 2 * lanes);
      Row::store(e, out + 3 * lanes);
    }
  }
  for (; i + lanes <= rows.count; i += lanes) reduce_at<Row, Op, Finish>(rows, i);
  for (; i < rows.count; ++i) reduce_at<typename Row::Single, Op, Finish>(rows, i);
}

template <class Row>
void average(Rows rows, int divisor) {
  rows.operand = divisor;
  if (divisor == 1) return reduce<Row, Sum>(rows);
  // Multiplying by the reciprocal of a power of two rounds exactly as the division does, and is faster.
  const bool power_of_two = (divisor & (divisor - 1)) == 0;
  if (!power_of_two) return reduce<Row, Sum, Divide>(rows);
  rows.operand = 1.0 / divisor;
  reduce<Row, Sum, Multiply>(rows);
}

template <class Row>
void reduce_bits(const Rows& rows, ReduceOp op) {
  if (op == ReduceOp::band) return reduce<Row, BitAnd>(rows);
  op == ReduceOp::bor ? reduce<Row, BitOr>(rows) : reduce<Row, BitXor>(rows);
}

// Bytes that are 0 or 1.
void reduce_bool(const Rows& rows, ReduceOp op) {
  const bool is_and = op == ReduceOp::product || op == ReduceOp::min;
  const bool is_or = op == ReduceOp::sum || op == ReduceOp::max;
  reduce_bits<PlainRow<std::uint8_t>>(rows, is_and ? ReduceOp::band : is_or ? ReduceOp::bor : op);
}

template <class Row>
void reduce_as(const Rows& rows, ReduceOp op, int divisor) {
  switch (op) {
    case ReduceOp::sum: return reduce<Row, Sum>(rows);
    case ReduceOp::product: return reduce<Row, Product>(rows);
    case ReduceOp::min: return reduce<Row, Min>(rows);
    case ReduceOp::max: return reduce<Row, Max>(rows);
    default: break;
  }
  if constexpr (kIsFloat<hn::Vec<typename Row::D>>) {
    if (op == ReduceOp::avg) average<Row>(rows, divisor);
  } else {
    reduce_bits<Row>(rows, op);
  }
}

void reduce_rows_on_target(std::span<std::byte* const> outputs, std::span<const std::byte* const> inputs,
                           std::size_t count, DType dtype, ReduceOp op, int divisor) {
  const Rows rows{outputs, inputs, count, 0};
  switch (dtype) {
    case DType::f32: return reduce_as<PlainRow<float>>(rows, op, divisor);
    case DType::f64: return reduce_as<PlainRow<double>>(rows, op, divisor);
    case DType::f16: return reduce_as<Float16Row<>>(rows, op, divisor);
    case DType::bf16: return reduce_as<BFloat16Row<>>(rows, op, divisor);
    case DType::i32: return reduce_as<PlainRow<std::int32_t>>(rows, op, divisor);
    case DType::i64: return reduce_as<PlainRow<std::int64_t>>(rows, op, divisor);
    case DType::u8: return reduce_as<PlainRow<std::uint8_t>>(rows, op, divisor);
    case DType::i8: return reduce_as<PlainRow<std::int8_t>>(rows, op, divisor);
    case DType::i16: return reduce_as<PlainRow<std::int16_t>>(rows, op, divisor);
    case DType::u16: return reduce_as<PlainRow<std::uint16_t>>(rows, op, divisor);
    case DType::u32: return reduce_as<PlainRow<std::uint32_t>>(rows, op, divisor);
    case DType::u64: return reduce_as<PlainRow<std::uint64_t>>(rows, op, divisor);
    case DType::boolean: return reduce_bool(rows, op);
    default: return;  // never asked for
  }
}

// Copies elements from one way of storing them to another; vectors of both rows have the same number of lanes.
template <class From, class To>
void convert(const void* from, void* to, std::size_t count) {
  const auto* in = static_cast<const typename From::Stored*>(from);
  auto* out = static_cast<typename To::Stored*>(to);
  const std::size_t lanes = hn::Lanes(typename From::D());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) To::store(From::load(in + i), out + i);
  for (; i < count; ++i) To::Single::store(From::Single::load(in + i), out + i);
}

void widen_on_target(const std::byte* from, float* to, std::size_t count, DType dtype) {
  dtype == DType::f16 ? convert<Float16Row<>, PlainRow<float>>(from, to, count)
                      : convert<BFloat16Row<>, PlainRow<float>>(from, to, count);
}

void narrow_on_target(const float* from, std::byte* to, std::size_t count, DType dtype) {
  dtype == DType::f16 ? convert<PlainRow<float>, Float16Row<>>(from, to, count)
                      : convert<PlainRow<float>, BFloat16Row<>>(from, to, count);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lockstep::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::internal {
namespace {
HWY_EXPORT(reduce_rows_on_target);
HWY_EXPORT(widen_on_target);
HWY_EXPORT(narrow_on_target);
}  // namespace

void reduce_vectors(std::span<std::byte* const> outputs, std::span<const std::byte* const> inputs, std::size_t count,
                    DType dtype, ReduceOp op, int divisor) {
  HWY_DYNAMIC_DISPATCH(reduce_rows_on_target)(outputs, inputs, count, dtype, op, divisor);
}

void widen(const std::byte* from, float* to, std::size_t count, DType from_dtype) {
  HWY_DYNAMIC_DISPATCH(widen_on_target)(from, to, count, from_dtype);
}

void narrow(const float* from, std::byte* to, std::size_t count, DType to_dtype) {
  HWY_DYNAMIC_DISPATCH(narrow_on_target)(from, to, count, to_dtype);
}

}  // namespace lockstep::internal
#endif
