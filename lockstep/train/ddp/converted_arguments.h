// Gives a module's forward its arguments with all their tensors converted, however deep they lie in tuples and
// containers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace lockstep::internal {

// As torch::nn::utils::rnn::PackedSequence.
template <class Value>
concept PackedTensors = requires(const Value& value) {
  value.batch_sizes().size(0);
  Value(value.data(), value.batch_sizes(), value.sorted_indices(), value.unsorted_indices());
};

template <class Value>
concept OptionalValue = requires(Value& value) {
  value.has_value();
  *value;
};

// Not views of other memory: their elements belong to the caller.
template <class Value>
concept OwningContainer =
    requires(Value& value) { value.begin(); } &&
    (
        requires { typename Value::allocator_type; } || requires { std::tuple_size<Value>::value; });

template <class Value>
constexpr bool holds_tensors() {
  if constexpr (std::is_same_v<Value, at::Tensor> || PackedTensors<Value>) {
    return true;
  } else if constexpr (OptionalValue<Value> || OwningContainer<Value>) {
    return holds_tensors<typename Value::value_type>();
  } else if constexpr (requires { std::tuple_size<Value>::value; }) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (holds_tensors<std::tuple_element_t<I, Value>>() || ...);
    }(std::make_index_sequence<std::tuple_size_v<Value>>());
  } else {
    return false;
  }
}

template <class Value, class Convert>
void convert_tensors_in(Value& value, const Convert& convert) {
  if constexpr (!holds_tensors<Value>()) {
    return;
  } else if constexpr (std::is_same_v<Value, at::Tensor>) {
    value = convert(value);
  } else if constexpr (PackedTensors<Value>) {  // the CPU reads the batch sizes
    value = Value(convert(value.data()), value.batch_sizes(), convert(value.sorted_indices()),
                  convert(value.unsorted_indices()));
  } else if constexpr (OptionalValue<Value>) {
    if (value.has_value()) convert_tensors_in(*value, convert);
  } else if constexpr (OwningContainer<Value>) {
    for (auto& element : value) convert_tensors_in(element, convert);
  } else {
    std::apply([&](auto&... elements) { (convert_tensors_in(elements, convert), ...); }, value);
  }
}

// A converted copy of a value that holds tensors; other values pass unchanged.
template <class Arg, class Convert>
decltype(auto) with_converted_tensors(Arg&& arg, const Convert& convert) {
  using Value = std::remove_cvref_t<Arg>;
  if constexpr (holds_tensors<Value>() && std::is_constructible_v<Value, Arg&&>) {
    Value copy(std::forward<Arg>(arg));
    convert_tensors_in(copy, convert);
    return copy;
  } else {
    return std::forward<Arg>(arg);
  }
}

}  // namespace lockstep::internal
