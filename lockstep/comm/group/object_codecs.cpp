#include "lockstep/comm/group/object_codecs.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <cstdint>
#include <cstring>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/torch_errors.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr int kMostNested = 100;           // lists in lists
constexpr std::size_t kMostInTuple = 255;  // of a type: its number takes a byte

// The first byte of a value, and in the type that a list or dictionary says its elements have.
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
  optional = 'o',  // of types only
};

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorKind::corrupt_data, "a received IValue is invalid: " + why);
}

// The kind of a type that stands for itself: others have types within, or can be anything.
std::optional<Kind> plain_kind(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::NoneType: return Kind::none;
    case c10::TypeKind::BoolType: return Kind::boolean;
    case c10::TypeKind::IntType: return Kind::integer;
    case c10::TypeKind::FloatType: return Kind::floating;
    case c10::TypeKind::StringType: return Kind::string;
    case c10::TypeKind::TensorType: return Kind::tensor;
    default: return std::nullopt;
  }
}

bool can_be_key(const c10::Type& type) { return plain_kind(type).value_or(Kind::none) != Kind::none; }

// What the elements of a container are, its type within behind it: 'l' 'i' is a list of integers.
void put_type(std::string& bytes, const c10::Type& type, int depth = 0) {
  if (depth > kMostNested) {
    throw Error(ErrorKind::invalid_argument,
                "an IValue cannot be sent as an object: its types are nested more than 100 deep");
  }
  const auto put = [&](Kind kind) { bytes += static_cast<char>(kind); };
  if (const auto kind = plain_kind(type)) return put(*kind);
  switch (type.kind()) {
    case c10::TypeKind::ListType: put(Kind::list); break;
    case c10::TypeKind::DictType: put(Kind::dictionary); break;
    case c10::TypeKind::TupleType:
      if (type.containedTypeSize() > kMostInTuple) return put(Kind::any);
      put(Kind::tuple);
      bytes += static_cast<char>(type.containedTypeSize());
      break;
    case c10::TypeKind::OptionalType:
      put(Kind::optional);
      return put_type(bytes, *type.expectRef<c10::OptionalType>().getElementType(), depth + 1);
    default: return put(Kind::any);
  }
  for (const c10::TypePtr& within : type.containedTypes()) put_type(bytes, *within, depth + 1);
}

unsigned char take_byte(std::string_view& bytes) {
  if (bytes.empty()) refuse("its bytes are truncated");
  const auto byte = static_cast<unsigned char>(bytes.front());
  bytes.remove_prefix(1);
  return byte;
}

Kind take_kind(std::string_view& bytes) { return static_cast<Kind>(take_byte(bytes)); }

c10::TypePtr take_key_type(std::string_view& bytes, int depth = 0);

c10::TypePtr take_type(std::string_view& bytes, int depth = 0) {
  if (depth > kMostNested) refuse("its types are nested more than 100 deep");
  const Kind kind = take_kind(bytes);
  switch (kind) {
    case Kind::none: return c10::NoneType::get();
    case Kind::boolean: return c10::BoolType::get();
    case Kind::integer: return c10::IntType::get();
    case Kind::floating: return c10::FloatType::get();
    case Kind::string: return c10::StringType::get();
    case Kind::tensor: return c10::TensorType::get();
    case Kind::any: return c10::AnyType::get();
    case Kind::list: return c10::ListType::create(take_type(bytes, depth + 1));
    case Kind::optional: return c10::OptionalType::create(take_type(bytes, depth + 1));
    case Kind::dictionary: {
      c10::TypePtr keys = take_key_type(bytes, depth + 1);
      return c10::DictType::create(std::move(keys), take_type(bytes, depth + 1));
    }
    case Kind::tuple: {
      std::vector<c10::TypePtr> within(take_byte(bytes));
      for (c10::TypePtr& each : within) each = take_type(bytes, depth + 1);
      return c10::TupleType::create(std::move(within));
    }
  }
  refuse("unknown element type " + std::to_string(static_cast<int>(kind)));
}

c10::TypePtr take_key_type(std::string_view& bytes, int depth) {
  c10::TypePtr type = take_type(bytes, depth);
  if (!can_be_key(*type)) refuse("dictionary keys must be numbers, strings or tensors");
  return type;
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
    bytes += static_cast<char>(Kind::list);
    put_type(bytes, *list.elementType());
    for (const c10::IValue& each : list.vec()) put_value(bytes, each, depth);
  } else {
    const auto map = value.toGenericDict();
    if (!can_be_key(*map.keyType())) {
      throw Error(ErrorKind::invalid_argument,
                  "cannot send an IValue: dictionary keys must be numbers, strings or tensors");
    }
    bytes += static_cast<char>(Kind::dictionary);
    put_type(bytes, *map.keyType());
    put_type(bytes, *map.valueType());
    for (const auto& entry : map) {
      put_value(bytes, entry.key(), depth);
      put_value(bytes, entry.value(), depth);
    }
  }
  return bytes;
}

std::string encoded(const c10::IValue& value, int depth) {
  if (depth > kMostNested) {
    throw Error(ErrorKind::invalid_argument, "cannot send an IValue: it is nested more than 100 deep");
  }
  if (value.isNone()) return {static_cast<char>(Kind::none)};
  if (value.isBool()) return scalar(Kind::boolean, value.toBool());
  if (value.isInt()) return scalar(Kind::integer, value.toInt());
  if (value.isDouble()) return scalar(Kind::floating, value.toDouble());
  if (value.isString()) return scalar(Kind::string, value.toStringRef());
  if (value.isTensor()) return scalar(Kind::tensor, value.toTensor());
  if (value.isTuple() || value.isList() || value.isGenericDict()) return encoded_container(value, depth + 1);
  throw Error(ErrorKind::invalid_argument, "cannot send an IValue of the kind " + value.tagKind());
}

c10::IValue decoded(std::string_view bytes, int depth);

c10::IValue take_element(std::string_view& bytes, const c10::Type& type, int depth) {
  c10::IValue element = decoded(take_block(bytes), depth);
  if (!element.type()->isSubtypeOf(type)) refuse("an element does not have its container's element type");
  return element;
}

c10::IValue decoded_dictionary(std::string_view bytes, int depth) {
  const c10::TypePtr keys = take_key_type(bytes), values = take_type(bytes);
  c10::impl::GenericDict map(keys, values);
  while (!bytes.empty()) {
    const c10::IValue key = take_element(bytes, *keys, depth);
    map.insert_or_assign(key, take_element(bytes, *values, depth));
  }
  return map;
}

c10::IValue decoded(std::string_view bytes, int depth) {
  if (depth > kMostNested) refuse("it is nested more than 100 deep");
  const Kind kind = take_kind(bytes);
  switch (kind) {
    case Kind::none:
      if (!bytes.empty()) refuse("None is followed by data");
      return {};
    case Kind::boolean: return ObjectCodec<bool>::decode(bytes);
    case Kind::integer: return ObjectCodec<std::int64_t>::decode(bytes);
    case Kind::floating: return ObjectCodec<double>::decode(bytes);
    case Kind::string: return ObjectCodec<std::string>::decode(bytes);
    case Kind::tensor: return ObjectCodec<at::Tensor>::decode(bytes);
    case Kind::list: {
      const c10::TypePtr elements = take_type(bytes);
      c10::impl::GenericList list(elements);
      while (!bytes.empty()) list.push_back(take_element(bytes, *elements, depth + 1));
      return list;
    }
    case Kind::tuple: {
      std::vector<c10::IValue> elements;
      while (!bytes.empty()) elements.push_back(decoded(take_block(bytes), depth + 1));
      return c10::ivalue::Tuple::create(std::move(elements));
    }
    case Kind::dictionary: return decoded_dictionary(bytes, depth + 1);
    case Kind::any:
    case Kind::optional: break;
  }
  refuse("unknown kind " + std::to_string(static_cast<int>(kind)));
}

}  // namespace

void internal::put_block(std::string& out, std::string_view block) {
  const auto length = static_cast<std::uint64_t>(block.size());
  out.append(reinterpret_cast<const char*>(&length), sizeof length).append(block);
}

std::string_view internal::take_block(std::string_view& bytes) {
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) refuse_object(bytes.size(), sizeof length);
  std::memcpy(&length, bytes.data(), sizeof length);
  bytes.remove_prefix(sizeof length);
  if (length > bytes.size()) refuse_object(bytes.size(), static_cast<std::size_t>(length));
  const std::string_view block = bytes.substr(0, static_cast<std::size_t>(length));
  bytes.remove_prefix(block.size());
  return block;
}

void internal::refuse_json(const std::exception& why) {
  throw Error(ErrorKind::corrupt_data, std::string("a received JSON value is invalid: ") + why.what());
}

std::string ObjectCodec<c10::IValue>::encode(const c10::IValue& value) { return encoded(value, 0); }
c10::IValue ObjectCodec<c10::IValue>::decode(std::string_view bytes) {
  return as_errors("receiving an IValue", ErrorKind::corrupt_data, [&] { return decoded(bytes, 0); });
}

}  // namespace lockstep
