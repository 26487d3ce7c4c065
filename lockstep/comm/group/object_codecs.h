// More objects that ranks can exchange: lists, pairs, dictionaries (also of tensors), JSON, torch's IValue. A container
// is encoded as its elements, each in a block: its length in 8 bytes, then its bytes. Nothing in the bytes is ever
// executed; invalid bytes are Error{corrupt_data}.
#pragma once

#include <concepts>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/comm/group/objects.h"

namespace c10 {
struct IValue;
template <class Key, class Value>
class Dict;
}  // namespace c10

namespace lockstep {

namespace internal {

void put_block(std::string& out, std::string_view block);  // with its length
// Removes one from the beginning of `bytes`.
std::string_view take_block(std::string_view& bytes);
[[noreturn]] void refuse_json(const std::exception& why);

template <class Map, class Key, class Value>
struct DictionaryCodec {  // of maps: keys and values in turn
  static std::string encode(const Map& map) {
    std::string bytes;
    const auto put = [&bytes](const Key& key, const Value& value) {
      put_block(bytes, ObjectCodec<Key>::encode(key));
      put_block(bytes, ObjectCodec<Value>::encode(value));
    };
    for (const auto& entry : map) {
      if constexpr (requires { entry.key(); }) {
        put(entry.key(), entry.value());
      } else {
        put(entry.first, entry.second);
      }
    }
    return bytes;
  }
  static Map decode(std::string_view bytes) {
    Map map;
    while (!bytes.empty()) {
      Key key = ObjectCodec<Key>::decode(take_block(bytes));
      map.insert_or_assign(std::move(key), ObjectCodec<Value>::decode(take_block(bytes)));
    }
    return map;
  }
};

}  // namespace internal

// A JSON value of any library whose type writes itself with dump() and reads text with a static parse(), as
// nlohmann::json does.
template <class T>
concept JsonValue = requires(const T& value, const std::string& text) {
  { value.dump() } -> std::convertible_to<std::string>;
  { T::parse(text) } -> std::convertible_to<T>;
};

template <JsonValue T>
struct ObjectCodec<T> {
  static std::string encode(const T& value) { return value.dump(); }
  static T decode(std::string_view bytes) {
    try {
      return T::parse(std::string(bytes));
    } catch (const std::exception& error) {
      internal::refuse_json(error);
    }
  }
};

template <class T>
struct ObjectCodec<std::vector<T>> {
  static std::string encode(const std::vector<T>& list) {
    std::string bytes;
    for (const auto& each : list) internal::put_block(bytes, ObjectCodec<T>::encode(each));
    return bytes;
  }
  static std::vector<T> decode(std::string_view bytes) {
    std::vector<T> list;
    while (!bytes.empty()) list.push_back(ObjectCodec<T>::decode(internal::take_block(bytes)));
    return list;
  }
};

template <class First, class Second>
struct ObjectCodec<std::pair<First, Second>> {
  static std::string encode(const std::pair<First, Second>& pair) {
    std::string bytes;
    internal::put_block(bytes, ObjectCodec<First>::encode(pair.first));
    return bytes + ObjectCodec<Second>::encode(pair.second);
  }
  static std::pair<First, Second> decode(std::string_view bytes) {
    First first = ObjectCodec<First>::decode(internal::take_block(bytes));
    return {std::move(first), ObjectCodec<Second>::decode(bytes)};
  }
};

template <class Key, class Value>
struct ObjectCodec<std::map<Key, Value>> : internal::DictionaryCodec<std::map<Key, Value>, Key, Value> {};
template <class Key, class Value>
struct ObjectCodec<std::unordered_map<Key, Value>>
    : internal::DictionaryCodec<std::unordered_map<Key, Value>, Key, Value> {};
// In the order in which entries were added.
template <class Key, class Value>
struct ObjectCodec<c10::Dict<Key, Value>> : internal::DictionaryCodec<c10::Dict<Key, Value>, Key, Value> {};

// None, numbers, strings, tensors, lists, tuples and dictionaries of them. Error{invalid_argument} for others. Lists
// and dictionaries keep the types of their elements, except that unions, complex numbers and numbers of any type become
// Any. Names of a tuple's fields are lost.
template <>
struct ObjectCodec<c10::IValue> {
  static std::string encode(const c10::IValue& value);
  static c10::IValue decode(std::string_view bytes);
};

}  // namespace lockstep
