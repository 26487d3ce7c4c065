// Which types numbers.h reduces: numbers, and plain structs of them, whose members are counted by trying how many
// initialisers they take.
#pragma once

#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace lockstep::internal {

template <class T>  // one number, of a type that a collective can reduce
concept Number = std::is_arithmetic_v<T> && sizeof(T) <= 8 && !std::is_const_v<T>;

struct AnyNumber {
  template <Number T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};
struct Anything {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};
template <class T>
struct AnyBaseOf {
  template <class Base>
    requires(std::is_base_of_v<Base, T> && !std::is_same_v<Base, T>)
  operator Base() const;  // NOLINT(google-explicit-constructor)
};

template <class T, class Member, class... Members>
constexpr std::size_t members() {
  if constexpr (requires { T{std::declval<Members>()..., std::declval<Member>()}; }) {
    return members<T, Member, Members..., Member>();
  } else {
    return sizeof...(Members);
  }
}

// A number may not be in two pairs of braces, an array may.
template <class T, class... Before>
constexpr bool has_array() {
  if constexpr (requires { T{std::declval<Before>()..., {{std::declval<AnyNumber>()}}}; }) {
    return true;
  } else if constexpr (requires { T{std::declval<Before>()..., std::declval<AnyNumber>()}; }) {
    return has_array<T, Before..., AnyNumber>();
  } else {
    return false;
  }
}

template <class T>
concept HasBase = requires { T{std::declval<AnyBaseOf<T>>()}; };
template <class T>
concept IsTuple = requires { std::tuple_size<T>::value; };  // as std::array, whose elements count

inline constexpr std::size_t kMostMembers = 8;

template <class T>
constexpr bool is_struct_of_numbers() {
  if constexpr (std::is_class_v<T> && std::is_aggregate_v<T> && std::is_trivially_copyable_v<T> &&
                std::is_copy_assignable_v<T>) {
    constexpr std::size_t count = members<T, AnyNumber>();
    if constexpr (count == 0 || count > kMostMembers || count != members<T, Anything>()) return false;
    return IsTuple<T> || !(HasBase<T> || has_array<T>());
  } else {
    return false;
  }
}

// A number, or a plain struct of up to 8 of them.
template <class T>
concept Numbers = Number<T> || is_struct_of_numbers<T>();

}  // namespace lockstep::internal
