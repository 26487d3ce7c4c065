// Numbers that ranks reduce without putting them in a tensor. numbers -> bytes -> all_gather -> reduced here.
//   world.all_reduce(loss_sum, count);            each becomes its sum over all ranks
//   world.all_reduce(totals);                     a plain struct of up to 8 numbers, member by member
//   world.all_reduce(seconds, ReduceOp::max);
// One collective for all of them, whatever their types; sums are made in rank order, integers are exact and wrap.
#pragma once

#include <ATen/core/Tensor.h>

#include <bit>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/dtype.h"
#include "lockstep/comm/group/number_types.h"
#include "lockstep/comm/group/options.h"

namespace lockstep::internal {

// A number in the caller's memory.
struct NumberRef {
  void* value = nullptr;
  DType dtype = DType::f64;

  template <Number T>
  static NumberRef to(T& number) {
    constexpr DType kIntegers[] = {DType::i8, DType::i16, DType::i32, DType::i64};
    constexpr DType kNaturals[] = {DType::u8, DType::u16, DType::u32, DType::u64};
    constexpr int kWidth = std::countr_zero(sizeof(T));
    if (std::is_same_v<T, bool>) return {&number, DType::boolean};
    if (std::is_floating_point_v<T>) return {&number, sizeof(T) == 4 ? DType::f32 : DType::f64};
    return {&number, std::is_signed_v<T> ? kIntegers[kWidth] : kNaturals[kWidth]};
  }
};

// An argument that is meant to be one, which number_refs() then checks: neither tensors nor options.
template <class T>
concept NumberArgument = std::is_arithmetic_v<T> ||
                         (std::is_class_v<T> && std::is_aggregate_v<T> && !std::is_convertible_v<T&, at::TensorList> &&
                          !std::is_same_v<std::remove_const_t<T>, CallOptions>);

template <Number T>  // Adds a number to a list.
void append_numbers(std::vector<NumberRef>& refs, T& number) {
  refs.push_back(NumberRef::to(number));
}

template <class T>  // Adds the members of a struct to a list.
  requires(!Number<T>)
void append_numbers(std::vector<NumberRef>& refs, T& of) {
  const auto append = [&refs](auto&... members) { (refs.push_back(NumberRef::to(members)), ...); };
  constexpr std::size_t count = members<T, AnyNumber>();
  if constexpr (count == 1) {
    auto& [a] = of;
    append(a);
  } else if constexpr (count == 2) {
    auto& [a, b] = of;
    append(a, b);
  } else if constexpr (count == 3) {
    auto& [a, b, c] = of;
    append(a, b, c);
  } else if constexpr (count == 4) {
    auto& [a, b, c, d] = of;
    append(a, b, c, d);
  } else if constexpr (count == 5) {
    auto& [a, b, c, d, e] = of;
    append(a, b, c, d, e);
  } else if constexpr (count == 6) {
    auto& [a, b, c, d, e, f] = of;
    append(a, b, c, d, e, f);
  } else if constexpr (count == 7) {
    auto& [a, b, c, d, e, f, g] = of;
    append(a, b, c, d, e, f, g);
  } else {
    auto& [a, b, c, d, e, f, g, h] = of;
    append(a, b, c, d, e, f, g, h);
  }
}

template <class... T>  // All numbers of the arguments.
std::vector<NumberRef> number_refs(T&... numbers) {
  constexpr bool kAreNumbers = (Numbers<T> && ...);
  static_assert(
      kAreNumbers,
      "all_reduce of numbers takes variables of arithmetic types of up to 8 bytes, and plain structs of 1 to 8 "
      "of them without arrays (std::array is fine), base classes, nested structs and constants; put anything "
      "else in a tensor");
  std::vector<NumberRef> refs;
  if constexpr (kAreNumbers) {
    refs.reserve(kMostMembers * sizeof...(T));
    (append_numbers(refs, numbers), ...);
  }
  return refs;
}

}  // namespace lockstep::internal
