// Puts the tensors of a batch, of any type, into pinned memory. batch -> batch. Independent of torch: a tensor is any
// type with pin_memory().
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace lockstep::internal {

// Whether there is a device to pin memory for; if not, logs it once.
bool has_device_to_pin_for();

template <class T>
void pin(T& value) {
  if constexpr (requires { value = value.pin_memory(), value.defined(); }) {
    if (value.defined()) value = value.pin_memory();
  } else if constexpr (requires { value.begin(), value.end(); }) {
    for (auto& each : value) pin(each);
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([](auto&... each) { (pin(each), ...); }, value);
  } else {
    if constexpr (requires { value.data; }) pin(value.data);
    if constexpr (requires { value.target; }) pin(value.target);
  }
}

// Whether a batch of this type has tensors, as far as pin() looks.
template <class T>
constexpr bool has_tensors() {
  if constexpr (requires(T& value) { value = value.pin_memory(); }) {
    return true;
  } else if constexpr (requires(T& value) { *value.begin(); }) {
    return has_tensors<std::remove_cvref_t<decltype(*std::declval<T&>().begin())>>();
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    return []<std::size_t... i>(std::index_sequence<i...>) {
      return (has_tensors<std::tuple_element_t<i, T>>() || ...);
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (requires(T& value) { value.data; }) {
    return has_tensors<std::remove_cvref_t<decltype(std::declval<T&>().data)>>();
  } else {
    return false;
  }
}

template <class Batch>
bool can_pin() {
  if constexpr (has_tensors<Batch>()) {
    return has_device_to_pin_for();
  } else {
    return false;
  }
}

}  // namespace lockstep::internal
