// Numbers that ranks reduce without putting them in a tensor. numbers -> bytes -> all_gather -> reduced here.
//   world.all_reduce(loss_sum, count);            each becomes its sum over all ranks
//   world.all_reduce(totals);                     a plain struct of up to 8 numbers, member by member
//   world.all_reduce(seconds, ReduceOp::max);
// One collective for all of them, whatever their types; sums are made in rank order, integers are exact and wrap.
#pragma once

#include <bit>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/dtype.h"

namespace lockstep {

template <class T>  // one number, of a type that a collective can reduce
concept Number = std::is_arithmetic_v<T> && sizeof(T) <= 8 && !std::is_const_v<T>;

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

namespace numbers_detail {

struct AnyNumber {
  template <Number T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};
struct Anything {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};

template <class T, class Member, class... Members>
constexpr std::size_t members() {
  if constexpr (requires { T{std::declval<Members>()..., std::declval<Member>()}; }) {
    return members<T, Member, Members..., Member>();
  } else {
    return sizeof...(Members);
  }
}

inline constexpr std::size_t kMostMembers = 8;

template <class T>
constexpr bool is_struct_of_numbers() {
  if constexpr (std::is_aggregate_v<T> && std::is_trivially_copyable_v<T> && !std::is_const_v<T>) {
    constexpr std::size_t count = members<T, AnyNumber>();
    return count > 0 && count <= kMostMembers && count == members<T, Anything>();
  } else {
    return false;
  }
}

}  // namespace numbers_detail

// A number, or a plain struct of up to 8 of them.
template <class T>
concept Numbers = Number<T> || numbers_detail::is_struct_of_numbers<T>();

template <Number T>  // Adds a number to a list.
void append_numbers(std::vector<NumberRef>& refs, T& number) {
  refs.push_back(NumberRef::to(number));
}

template <class T>  // Adds the members of a struct to a list.
  requires(!Number<T>)
void append_numbers(std::vector<NumberRef>& refs, T& of) {
  const auto append = [&refs](auto&... members) { (refs.push_back(NumberRef::to(members)), ...); };
  constexpr std::size_t count = numbers_detail::members<T, numbers_detail::AnyNumber>();
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

template <Numbers... T>  // All numbers of the arguments.
std::vector<NumberRef> number_refs(T&... numbers) {
  std::vector<NumberRef> refs;
  refs.reserve(8 * sizeof...(T));  // a struct has no more
  (append_numbers(refs, numbers), ...);
  return refs;
}

}  // namespace lockstep
