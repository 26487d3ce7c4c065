#include "tools/tensor_difference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "lockstep/formats/safetensors/torch_types.h"

namespace lockstep::tools {
namespace {

struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};
struct Float8E4M3 {
  std::uint8_t bits;
};
struct Float8E5M2 {
  std::uint8_t bits;
};

// Another bias than in the IEEE's types, and no infinity: the only NaN is what would be -0.
struct Float8E4M3Fnuz {
  std::uint8_t bits;
};
struct Float8E5M2Fnuz {
  std::uint8_t bits;
};
// A power of two.
struct Float8E8M0 {
  std::uint8_t bits;
};
template <class Number>
struct Complex {
  Number real;
  Number imaginary;
};

double value_of(Float16 number) {
  const int exponent = number.bits >> 10 & 31;
  const int fraction = number.bits & 1023;
  double value = std::ldexp(exponent == 0 ? fraction : fraction + 1024, std::max(exponent, 1) - 25);
  if (exponent == 31) value = fraction == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
  return (number.bits & 0x8000) != 0 ? -value : value;
}
double value_of(BFloat16 number) { return static_cast<double>(std::bit_cast<float>(std::uint32_t{number.bits} << 16)); }
double value_of(Float8E4M3 number) {
  const int exponent = number.bits >> 3 & 15;
  const int fraction = number.bits & 7;
  double value = std::ldexp(exponent == 0 ? fraction : fraction + 8, std::max(exponent, 1) - 10);
  if ((number.bits & 0x7f) == 0x7f) value = std::nan("");  // it has no infinity
  return (number.bits & 0x80) != 0 ? -value : value;
}
double value_of_fnuz(std::uint8_t bits, int fraction_bits, int bias) {
  if (bits == 0x80) return std::nan("");
  const int exponent = (bits & 0x7f) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int digits = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
  const double value = std::ldexp(digits, std::max(exponent, 1) - bias - fraction_bits);
  return (bits & 0x80) != 0 ? -value : value;
}
double value_of(Float8E4M3Fnuz number) { return value_of_fnuz(number.bits, 3, 8); }
double value_of(Float8E5M2Fnuz number) { return value_of_fnuz(number.bits, 2, 16); }
double value_of(Float8E8M0 number) { return number.bits == 0xff ? std::nan("") : std::ldexp(1, number.bits - 127); }
double value_of(Float8E5M2 number) { return value_of(Float16{static_cast<std::uint16_t>(number.bits << 8)}); }
template <class Number>
double value_of(Number number) {
  return static_cast<double>(number);
}

// Exact also for integers of 64 bits, which a double does not hold.
template <class Number>
double distance(Number a, Number b) {
  if constexpr (std::is_integral_v<Number>) {
    using Unsigned = std::make_unsigned_t<Number>;
    const auto larger = static_cast<Unsigned>(std::max(a, b));
    return static_cast<double>(static_cast<Unsigned>(larger - static_cast<Unsigned>(std::min(a, b))));
  } else {
    const double x = value_of(a), y = value_of(b);
    if (x == y || (std::isnan(x) && std::isnan(y))) return 0;
    const double difference = std::abs(x - y);
    return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
  }
}

// The size of a complex number, and of the difference of two.
template <class Number>
double value_of(Complex<Number> number) {
  return std::hypot(value_of(number.real), value_of(number.imaginary));
}
template <class Number>
double distance(Complex<Number> a, Complex<Number> b) {
  return std::hypot(distance(a.real, b.real), distance(a.imaginary, b.imaginary));
}

template <class Number>
void compare_as(ByteSpan a, ByteSpan b, double tolerance, TensorDifference& difference) {
  for (std::size_t at = 0; at < a.size(); at += sizeof(Number)) {
    Number x, y;
    std::memcpy(&x, a.data() + at, sizeof x);
    std::memcpy(&y, b.data() + at, sizeof y);
    const double apart = distance(x, y);
    if (apart == 0) continue;
    const double larger = std::fmax(std::abs(value_of(x)), std::abs(value_of(y)));
    difference.largest = std::max(difference.largest, apart);
    const double relative = std::isinf(apart) ? apart : apart / larger;
    difference.largest_relative = std::max(difference.largest_relative, relative);
    if (std::isinf(apart) || apart > tolerance * std::max(1.0, larger)) ++difference.different;
  }
}

}  // namespace

void compare_elements(const std::string& dtype, ByteSpan a, ByteSpan b, double tolerance,
                      TensorDifference& difference) {
  difference.elements += a.size() / internal::torch_element_size(dtype);
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return;
  if (dtype == "F32") return compare_as<float>(a, b, tolerance, difference);
  if (dtype == "F64") return compare_as<double>(a, b, tolerance, difference);
  if (dtype == "F16") return compare_as<Float16>(a, b, tolerance, difference);
  if (dtype == "BF16") return compare_as<BFloat16>(a, b, tolerance, difference);
  if (dtype == "I64") return compare_as<std::int64_t>(a, b, tolerance, difference);
  if (dtype == "I32") return compare_as<std::int32_t>(a, b, tolerance, difference);
  if (dtype == "I16") return compare_as<std::int16_t>(a, b, tolerance, difference);
  if (dtype == "I8") return compare_as<std::int8_t>(a, b, tolerance, difference);
  if (dtype == "U64") return compare_as<std::uint64_t>(a, b, tolerance, difference);
  if (dtype == "U32") return compare_as<std::uint32_t>(a, b, tolerance, difference);
  if (dtype == "U16") return compare_as<std::uint16_t>(a, b, tolerance, difference);
  if (dtype == "F8_E4M3") return compare_as<Float8E4M3>(a, b, tolerance, difference);
  if (dtype == "F8_E5M2") return compare_as<Float8E5M2>(a, b, tolerance, difference);
  if (dtype == "F8_E4M3FNUZ") return compare_as<Float8E4M3Fnuz>(a, b, tolerance, difference);
  if (dtype == "F8_E5M2FNUZ") return compare_as<Float8E5M2Fnuz>(a, b, tolerance, difference);
  if (dtype == "F8_E8M0") return compare_as<Float8E8M0>(a, b, tolerance, difference);
  if (dtype == "C32") return compare_as<Complex<Float16>>(a, b, tolerance, difference);
  if (dtype == "C64") return compare_as<Complex<float>>(a, b, tolerance, difference);
  if (dtype == "C128") return compare_as<Complex<double>>(a, b, tolerance, difference);
  if (dtype == "BITS16") return compare_as<std::uint16_t>(a, b, tolerance, difference);
  return compare_as<std::uint8_t>(a, b, tolerance, difference);  // U8, BOOL and other bits
}

}  // namespace lockstep::tools
