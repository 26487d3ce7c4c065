#include "lockstep/group/object_codecs.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <cstdint>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr int kMostNested = 100;  // lists in lists

// The first byte of a value, and what a list or dictionary says its elements are.
enum class Kind : char {
  none = 'n',
  boolean = 'b',
  integer = 'i',
  floating = 'f',
  string = 's',
  tensor = 't',
  list = 'l',
  tuple = 'u',
  dictionary = 'd',
  any = 'a',
};

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorKind::corrupt_data, "an IValue as an object: " + why);
}

c10::TypePtr type_of(Kind kind) {
  switch (kind) {
    case Kind::boolean: return c10::BoolType::get();
    case Kind::integer: return c10::IntType::get();
    case Kind::floating: return c10::FloatType::get();
    case Kind::string: return c10::StringType::get();
    case Kind::tensor: return c10::TensorType::get();
    case Kind::any: return c10::AnyType::get();
    default: refuse("there are no elements of kind " + std::to_string(static_cast<int>(kind)));
  }
}

// What elements of a container are told to be: lists of lists come as lists of anything.
Kind kind_of(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::BoolType: return Kind::boolean;
    case c10::TypeKind::IntType: return Kind::integer;
    case c10::TypeKind::FloatType: return Kind::floating;
    case c10::TypeKind::StringType: return Kind::string;
    case c10::TypeKind::TensorType: return Kind::tensor;
    default: return Kind::any;
  }
}

std::string encoded(const c10::IValue& value, int depth);

void put_value(std::string& bytes, const c10::IValue& value, int depth) { put_block(bytes, encoded(value, depth)); }

template <class T>
std::string scalar(Kind kind, const T& value) {
  return static_cast<char>(kind) + ObjectCodec<T>::encode(value);
}

std::string encoded_container(const c10::IValue& value, int depth) {
  std::string bytes;
  if (value.isTuple()) {
    bytes += static_cast<char>(Kind::tuple);
    for (const c10::IValue& each : value.toTupleRef().elements()) put_value(bytes, each, depth);
  } else if (value.isList()) {
    const auto list = value.toList();
    bytes += {static_cast<char>(Kind::list), static_cast<char>(kind_of(*list.elementType()))};
    for (const c10::IValue& each : list.vec()) put_value(bytes, each, depth);
  } else {
    const auto map = value.toGenericDict();
    if (kind_of(*map.keyType()) == Kind::any) {
      throw Error(ErrorKind::invalid_argument, "an IValue as an object: keys are numbers, strings or tensors");
    }
    bytes += {static_cast<char>(Kind::dictionary), static_cast<char>(kind_of(*map.keyType())),
              static_cast<char>(kind_of(*map.valueType()))};
    for (const auto& entry : map) {
      put_value(bytes, entry.key(), depth);
      put_value(bytes, entry.value(), depth);
    }
  }
  return bytes;
}

std::string encoded(const c10::IValue& value, int depth) {
  if (depth > kMostNested) {
    throw Error(ErrorKind::invalid_argument, "an IValue as an object: it is nested more than 100 times");
  }
  if (value.isNone()) return {static_cast<char>(Kind::none)};
  if (value.isBool()) return scalar(Kind::boolean, value.toBool());
  if (value.isInt()) return scalar(Kind::integer, value.toInt());
  if (value.isDouble()) return scalar(Kind::floating, value.toDouble());
  if (value.isString()) return scalar(Kind::string, value.toStringRef());
  if (value.isTensor()) return scalar(Kind::tensor, value.toTensor());
  if (value.isTuple() || value.isList() || value.isGenericDict()) return encoded_container(value, depth + 1);
  throw Error(ErrorKind::invalid_argument, "an IValue as an object: a " + value.tagKind() + " cannot be sent");
}

Kind take_kind(std::string_view& bytes) {
  if (bytes.empty()) refuse("its end is missing");
  const auto kind = static_cast<Kind>(bytes.front());
  bytes.remove_prefix(1);
  return kind;
}

c10::IValue decoded(std::string_view bytes, int depth);

// REQUIRES: Kind::any takes all.
c10::IValue take_element(std::string_view& bytes, Kind kind, int depth) {
  const std::string_view block = take_block(bytes);
  if (kind != Kind::any && (block.empty() || static_cast<Kind>(block.front()) != kind)) {
    refuse("an element is not of the kind that its list tells");
  }
  return decoded(block, depth);
}

c10::IValue decoded_dictionary(std::string_view bytes, int depth) {
  const Kind keys = take_kind(bytes), values = take_kind(bytes);
  if (keys == Kind::any) refuse("keys are numbers, strings or tensors");
  c10::impl::GenericDict map(type_of(keys), type_of(values));
  while (!bytes.empty()) {
    const c10::IValue key = take_element(bytes, keys, depth);
    map.insert_or_assign(key, take_element(bytes, values, depth));
  }
  return map;
}

c10::IValue decoded(std::string_view bytes, int depth) {
  if (depth > kMostNested) refuse("it is nested more than 100 times");
  const Kind kind = take_kind(bytes);
  switch (kind) {
    case Kind::none:
      if (!bytes.empty()) refuse("a value stands behind none");
      return {};
    case Kind::boolean: return ObjectCodec<bool>::decode(bytes);
    case Kind::integer: return ObjectCodec<std::int64_t>::decode(bytes);
    case Kind::floating: return ObjectCodec<double>::decode(bytes);
    case Kind::string: return ObjectCodec<std::string>::decode(bytes);
    case Kind::tensor: return ObjectCodec<at::Tensor>::decode(bytes);
    case Kind::list: {
      const Kind elements = take_kind(bytes);
      c10::impl::GenericList list(type_of(elements));
      while (!bytes.empty()) list.push_back(take_element(bytes, elements, depth + 1));
      return list;
    }
    case Kind::tuple: {
      std::vector<c10::IValue> elements;
      while (!bytes.empty()) elements.push_back(take_element(bytes, Kind::any, depth + 1));
      return c10::ivalue::Tuple::create(std::move(elements));
    }
    case Kind::dictionary: return decoded_dictionary(bytes, depth + 1);
    case Kind::any: break;
  }
  refuse("there is no kind " + std::to_string(static_cast<int>(kind)));
}

}  // namespace

void put_block(std::string& out, std::string_view block) {
  const auto length = static_cast<std::uint64_t>(block.size());
  out.append(reinterpret_cast<const char*>(&length), sizeof length).append(block);
}

std::string_view take_block(std::string_view& bytes) {
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) refuse_object(bytes.size(), sizeof length);
  std::memcpy(&length, bytes.data(), sizeof length);
  bytes.remove_prefix(sizeof length);
  if (length > bytes.size()) refuse_object(bytes.size(), static_cast<std::size_t>(length));
  const std::string_view block = bytes.substr(0, static_cast<std::size_t>(length));
  bytes.remove_prefix(block.size());
  return block;
}

void refuse_json(const std::exception& why) {
  throw Error(ErrorKind::corrupt_data, std::string("a JSON value as an object: ") + why.what());
}

std::string ObjectCodec<c10::IValue>::encode(const c10::IValue& value) { return encoded(value, 0); }
c10::IValue ObjectCodec<c10::IValue>::decode(std::string_view bytes) { return decoded(bytes, 0); }

}  // namespace lockstep
