#include "lockstep/comm/store/key_map.h"

#include <charconv>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/store/store_text.h"

namespace lockstep::internal {

const Bytes* KeyMap::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void KeyMap::set(std::string_view key, ByteView value) {
  check_store_key(key);
  check_store_value(key, value);
  const auto found = values_.find(key);
  const bool is_new = found == values_.end();
  const std::size_t freed = is_new ? 0 : found->second.size();
  const std::size_t taken = value.size() + (is_new ? key.size() : 0);
  if (is_new && values_.size() == limits_.keys) {
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("the store is full: it holds {} keys, the limit, and {} is new", limits_.keys, quote_key(key)));
  }
  if (bytes_ - freed + taken > limits_.bytes) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("the store is full: with the key {} it would hold {} bytes, and the limit is {}; delete "
                            "keys, or keep large data out of it",
                            quote_key(key), bytes_ - freed + taken, limits_.bytes));
  }
  if (is_new) {
    values_.emplace(key, value);
  } else {
    found->second = value;
  }
  bytes_ = bytes_ - freed + taken;
}

std::int64_t KeyMap::add(std::string_view key, std::int64_t delta) {
  std::int64_t number = 0;
  if (const Bytes* value = find(key)) {
    const char* end = value->data() + value->size();
    const auto result = std::from_chars(value->data(), end, number);
    if (result.ec != std::errc() || result.ptr != end) {
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("cannot add to store key {}: it holds {}, not a 64-bit integer", quote_key(key),
                              quote_key(*value)));
    }
  }
  if (__builtin_add_overflow(number, delta, &number)) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("adding {} to store key {} would overflow a 64-bit integer", delta, quote_key(key)));
  }
  set(key, std::to_string(number));
  return number;
}

KeyMap::Compared KeyMap::compare_set(std::string_view key, ByteView expected, ByteView desired) {
  const Bytes* value = find(key);
  const bool matches = value == nullptr ? expected.empty() : *value == expected;
  if (!matches) return {value == nullptr ? Bytes(expected) : *value, false};
  set(key, desired);
  return {Bytes(desired), true};
}

bool KeyMap::remove(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= found->first.size() + found->second.size();
  values_.erase(found);
  return true;
}

}  // namespace lockstep::internal
