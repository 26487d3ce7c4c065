#include "lockstep/comm/collective/reduce.h"

#include <doctest/doctest.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/support/sanitized.h"

namespace reduce_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr DType kDTypes[] = {DType::f32, DType::f64,  DType::f16, DType::bf16, DType::i32,
                             DType::i64, DType::u8,   DType::i8,  DType::i16,  DType::boolean,
                             DType::c64, DType::c128, DType::u16, DType::u32,  DType::u64};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg,  ReduceOp::product, ReduceOp::min,
                             ReduceOp::max, ReduceOp::band, ReduceOp::bor,     ReduceOp::bxor};

// A binary format of 16 bits, read and rounded with nothing but exact arithmetic.
struct Format {
  int mantissa_bits;
  int min_exponent;
  int max_exponent;
};
constexpr Format kHalf{10, -14, 15};
constexpr Format kBrain{7, -126, 127};

float widen(std::uint16_t bits, Format format) {
  const int one = 1 << format.mantissa_bits;
  const int exponent = (bits & 0x7FFF) / one;
  const int mantissa = bits % one;
  double value;
  if (exponent == format.max_exponent - format.min_exponent + 2) {
    value = mantissa != 0 ? std::nan("") : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, format.min_exponent - format.mantissa_bits);
  } else {
    value = std::ldexp(one + mantissa, exponent - 1 + format.min_exponent - format.mantissa_bits);
  }
  return static_cast<float>((bits & 0x8000) != 0 ? -value : value);
}

std::uint16_t narrow(float value, Format format) {
  const int one = 1 << format.mantissa_bits;
  const auto infinity = static_cast<std::uint16_t>((format.max_exponent - format.min_exponent + 2) * one);
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | (one / 2));
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(value)) return static_cast<std::uint16_t>(infinity | sign);
  const int exponent = magnitude == 0 ? format.min_exponent : std::max(std::ilogb(magnitude), format.min_exponent);
  if (exponent > format.max_exponent) return static_cast<std::uint16_t>(infinity | sign);
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent)));
  return static_cast<std::uint16_t>(((exponent - format.min_exponent) * one + steps) | sign);
}

template <class T>
T combine(T a, T b, ReduceOp op) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg: return a + b;
      case ReduceOp::product: return a * b;
      case ReduceOp::min: return std::isnan(a) ? a : std::isnan(b) ? b : a < b ? a : b;
      case ReduceOp::max: return std::isnan(a) ? a : std::isnan(b) ? b : a > b ? a : b;
      default: break;
    }
  } else {
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg: return static_cast<T>(x + y);
      case ReduceOp::product: return static_cast<T>(x * y);
      case ReduceOp::min: return a < b ? a : b;
      case ReduceOp::max: return a > b ? a : b;
      case ReduceOp::band: return static_cast<T>(x & y);
      case ReduceOp::bor: return static_cast<T>(x | y);
      case ReduceOp::bxor: return static_cast<T>(x ^ y);
    }
  }
  return a;
}

template <class T>
T get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
T oracle_value(const std::vector<T>& values, ReduceOp op) {
  T result = values[0];
  for (std::size_t k = 1; k < values.size(); ++k) result = combine<T>(result, values[k], op);
  if (op == ReduceOp::avg) result = static_cast<T>(result / static_cast<T>(values.size()));
  return result;
}

template <class T>
void oracle_plain(std::byte* out, const std::vector<const std::byte*>& at, ReduceOp op) {
  std::vector<T> values;
  for (const std::byte* p : at) values.push_back(get<T>(p));
  const T result = oracle_value(values, op);
  std::memcpy(out, &result, sizeof result);
}

void oracle_narrow(std::byte* out, const std::vector<const std::byte*>& at, ReduceOp op, Format format) {
  std::vector<float> values;
  for (const std::byte* p : at) values.push_back(widen(get<std::uint16_t>(p), format));
  const std::uint16_t result = narrow(oracle_value(values, op), format);
  std::memcpy(out, &result, sizeof result);
}

template <class T>
void oracle_complex(std::byte* out, const std::vector<const std::byte*>& at, ReduceOp op) {
  T real = get<T>(at[0]), imaginary = get<T>(at[0] + sizeof(T));
  for (std::size_t k = 1; k < at.size(); ++k) {
    const T a = real, b = imaginary, c = get<T>(at[k]), d = get<T>(at[k] + sizeof(T));
    real = op == ReduceOp::product ? a * c - b * d : a + c;
    imaginary = op == ReduceOp::product ? a * d + b * c : b + d;
  }
  const T divisor = op == ReduceOp::avg ? static_cast<T>(at.size()) : 1;
  real /= divisor;
  imaginary /= divisor;
  std::memcpy(out, &real, sizeof real);
  std::memcpy(out + sizeof real, &imaginary, sizeof imaginary);
}

void oracle_bool(std::byte* out, const std::vector<const std::byte*>& at, ReduceOp op) {
  bool value = get<bool>(at[0]);
  for (std::size_t k = 1; k < at.size(); ++k) {
    const bool other = get<bool>(at[k]);
    if (op == ReduceOp::bxor) value = value != other;
    if (op == ReduceOp::product || op == ReduceOp::min || op == ReduceOp::band) value = value && other;
    if (op == ReduceOp::sum || op == ReduceOp::max || op == ReduceOp::bor) value = value || other;
  }
  std::memcpy(out, &value, sizeof value);
}

void oracle(std::byte* out, const std::vector<const std::byte*>& at, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::f32: return oracle_plain<float>(out, at, op);
    case DType::f64: return oracle_plain<double>(out, at, op);
    case DType::f16: return oracle_narrow(out, at, op, kHalf);
    case DType::bf16: return oracle_narrow(out, at, op, kBrain);
    case DType::i32: return oracle_plain<std::int32_t>(out, at, op);
    case DType::i64: return oracle_plain<std::int64_t>(out, at, op);
    case DType::u8: return oracle_plain<std::uint8_t>(out, at, op);
    case DType::i8: return oracle_plain<std::int8_t>(out, at, op);
    case DType::i16: return oracle_plain<std::int16_t>(out, at, op);
    case DType::u16: return oracle_plain<std::uint16_t>(out, at, op);
    case DType::u32: return oracle_plain<std::uint32_t>(out, at, op);
    case DType::u64: return oracle_plain<std::uint64_t>(out, at, op);
    case DType::boolean: return oracle_bool(out, at, op);
    case DType::c64: return oracle_complex<float>(out, at, op);
    case DType::c128: return oracle_complex<double>(out, at, op);
    case DType::opaque: return;
  }
}

bool is_nan(const std::byte* at, DType dtype) {
  switch (dtype) {
    case DType::f32: return std::isnan(get<float>(at));
    case DType::f64: return std::isnan(get<double>(at));
    case DType::f16: return std::isnan(widen(get<std::uint16_t>(at), kHalf));
    case DType::bf16: return std::isnan(widen(get<std::uint16_t>(at), kBrain));
    default: return false;
  }
}

// To the bit, except which NaN it is.
bool same_element(const std::byte* got, const std::byte* want, DType dtype) {
  if (is_complex(dtype)) {
    const DType part = dtype == DType::c64 ? DType::f32 : DType::f64;
    return same_element(got, want, part) && same_element(got + element_size(part), want + element_size(part), part);
  }
  return std::memcmp(got, want, element_size(dtype)) == 0 || (is_nan(got, dtype) && is_nan(want, dtype));
}

// Half of the values are arbitrary bits (every kind of number there is), half of moderate size, so that sums round.
void fill(std::vector<std::byte>& row, DType dtype, std::mt19937& random) {
  if (dtype == DType::c64) return fill(row, DType::f32, random);
  if (dtype == DType::c128) return fill(row, DType::f64, random);
  const std::size_t element = element_size(dtype);
  std::normal_distribution<float> normal;
  for (std::size_t at = 0; at + element <= row.size(); at += element) {
    if (dtype == DType::boolean) {
      row[at] = static_cast<std::byte>(random() % 2);
      continue;
    }
    const std::uint64_t bits = (std::uint64_t{random()} << 32) | random();
    std::memcpy(&row[at], &bits, element);
    if (random() % 2 == 0 || !is_floating_point(dtype)) continue;
    const float value = normal(random);
    const double wide = value;
    const std::uint16_t narrowed = narrow(value, dtype == DType::f16 ? kHalf : kBrain);
    if (dtype == DType::f32) std::memcpy(&row[at], &value, 4);
    if (dtype == DType::f64) std::memcpy(&row[at], &wide, 8);
    if (element == 2) std::memcpy(&row[at], &narrowed, 2);
  }
}

// Compares reduce_rows with the oracle; the rows start `skew` elements past an aligned address.
void check_case(DType dtype, ReduceOp op, std::size_t n, std::size_t count, std::size_t skew, bool in_place,
                std::mt19937& random) {
  const std::size_t element = element_size(dtype);
  std::vector<std::vector<std::byte>> rows(n, std::vector<std::byte>((count + skew + 1) * element));
  for (auto& row : rows) fill(row, dtype, random);
  std::vector<std::vector<std::byte>> results(in_place ? 0 : 2, std::vector<std::byte>((count + skew + 1) * element));

  std::vector<std::byte> expected(count * element);
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  for (auto& row : rows) inputs.push_back(row.data() + skew * element);
  for (auto& row : in_place ? rows : results) outputs.push_back(row.data() + skew * element);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<const std::byte*> at;
    for (const std::byte* input : inputs) at.push_back(input + i * element);
    oracle(&expected[i * element], at, dtype, op);
  }
  std::vector<std::byte> behind;  // the element after each output, which must stay as it is
  for (std::byte* output : outputs) {
    behind.insert(behind.end(), output + count * element, output + (count + 1) * element);
  }

  reduce_rows(outputs, inputs, count, dtype, op, static_cast<int>(n));

  bool same = true;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::byte* got = outputs[k] + i * element;
      const std::byte* want = &expected[i * element];
      same = same && same_element(got, want, dtype);
    }
    same = same && std::memcmp(outputs[k] + count * element, &behind[k * element], element) == 0;
  }
  CHECK(same);
}

// Restores the choice of the best instruction set.
struct TargetGuard {
  explicit TargetGuard(std::int64_t target) { hwy::SetSupportedTargetsForTest(target); }
  ~TargetGuard() { hwy::SetSupportedTargetsForTest(0); }
};

std::vector<std::int64_t> targets_to_test() {
  const std::int64_t supported = hwy::SupportedTargets();
  std::vector<std::int64_t> targets = {HWY_STATIC_TARGET};
  for (const std::int64_t target : {HWY_SSE4, HWY_AVX2, HWY_AVX3, HWY_NEON, HWY_SVE, HWY_SVE2}) {
    if ((supported & target) != 0 && target != HWY_STATIC_TARGET) targets.push_back(target);
  }
  return targets;
}

}  // namespace

TEST_CASE("every instruction set computes what plain code computes, to the bit") {
  for (const std::int64_t target : targets_to_test()) {
    const TargetGuard guard(target);
    CAPTURE(std::string(hwy::TargetName(target)));
    std::mt19937 random(7);
    for (const DType dtype : kDTypes) {
      for (const ReduceOp op : kOps) {
        if (!supports(op, dtype)) continue;
        CAPTURE(to_string(dtype));
        CAPTURE(to_string(op));
        for (std::size_t n = 1; n <= 9; ++n) {
          if (testing::kIsSanitized && n > 3 && n != 9) continue;
          CAPTURE(n);
          for (const std::size_t count : {0, 1, 3, 7, 16, 33, 64, 131, 257}) {
            CAPTURE(count);
            check_case(dtype, op, n, count, count % 3, count % 2 != 0, random);
          }
        }
      }
    }
  }
}

TEST_CASE("all 16-bit numbers survive the way to float32 and back") {
  for (const std::int64_t target : targets_to_test()) {
    const TargetGuard guard(target);
    CAPTURE(std::string(hwy::TargetName(target)));
    for (const DType dtype : {DType::f16, DType::bf16}) {
      std::vector<std::uint16_t> all(65536), result(65536);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
      const auto* input = reinterpret_cast<const std::byte*>(all.data());
      auto* output = reinterpret_cast<std::byte*>(result.data());
      reduce_rows({&output, 1}, {&input, 1}, all.size(), dtype, ReduceOp::sum);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const bool nan = is_nan(input + 2 * i, dtype);
        wrong += nan ? !is_nan(output + 2 * i, dtype) : result[i] != all[i];
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("what is reduced of no rows changes no row that is reduced with it") {
  std::mt19937 random(1);
  for (const DType dtype : kDTypes) {
    constexpr std::size_t kCount = 100;
    const std::size_t element = element_size(dtype);
    std::vector<std::byte> nothing(kCount * element), row(nothing), result(nothing);
    for (std::byte& byte : row) byte = static_cast<std::byte>(random() & 0x3F);  // no NaN
    for (std::size_t i = 0; dtype == DType::boolean && i < kCount; ++i) row[i] &= std::byte{1};
    std::byte *const empty = nothing.data(), *const output = result.data();
    const std::byte* const rows[] = {nothing.data(), row.data()};
    for (const ReduceOp op : kOps) {
      if (!supports(op, dtype)) continue;
      INFO(to_string(op) << " of " << to_string(dtype));
      reduce_rows({&empty, 1}, {}, kCount, dtype, op, 0);
      reduce_rows({&output, 1}, rows, kCount, dtype, op, 1);
      CHECK(result == row);
    }
  }
  float least = 0;
  std::byte* const to = reinterpret_cast<std::byte*>(&least);
  reduce_rows({&to, 1}, {}, 1, DType::f32, ReduceOp::max);
  CHECK(least == -std::numeric_limits<float>::infinity());
}

TEST_CASE("the result does not depend on how rows are cut") {
  std::mt19937 random(11);
  std::vector<std::vector<std::byte>> rows(5, std::vector<std::byte>(4000));
  for (auto& row : rows) fill(row, DType::f32, random);
  const auto reduce_range = [&](std::vector<std::byte>& result, std::size_t from, std::size_t to) {
    std::vector<const std::byte*> inputs;
    for (auto& row : rows) inputs.push_back(row.data() + from * 4);
    std::byte* output = result.data() + from * 4;
    reduce_rows({&output, 1}, inputs, to - from, DType::f32, ReduceOp::avg, 5);
  };
  std::vector<std::byte> whole(4000), cut(4000);
  reduce_range(whole, 0, 1000);
  for (std::size_t from = 0, to = 0; from < 1000; from = to) {
    to = std::min<std::size_t>(1000, from + 1 + random() % 90);
    reduce_range(cut, from, to);
  }
  std::size_t different = 0;
  for (std::size_t at = 0; at < 4000; at += 4) {
    different += std::memcmp(&whole[at], &cut[at], 4) != 0 && !is_nan(&whole[at], DType::f32);
  }
  CHECK(different == 0);
}

}  // namespace reduce_test
