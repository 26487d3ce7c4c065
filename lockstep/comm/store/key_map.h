// A KeyMap is what every store keeps: keys, values, their limits and what the verbs do to them. Pure; not thread-safe.
// Errors, all invalid_argument with the limit in the text, leave it unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "lockstep/base/bytes.h"
#include "lockstep/comm/store/store.h"

namespace lockstep::internal {

struct KeyMapLimits {
  std::size_t keys = kMaxStoreKeys;
  std::size_t bytes = kMaxStoreBytes;  // of all keys and values
};

class KeyMap {
 public:
  explicit KeyMap(KeyMapLimits limits = {}) : limits_(limits) {}

  // nullptr if the key is missing; valid until the next change.
  const Bytes* find(std::string_view key) const;
  void set(std::string_view key, ByteView value);
  std::int64_t add(std::string_view key, std::int64_t delta);
  struct Compared {
    Bytes value;  // as Store::compare_set() returns it
    bool stored = false;
  };
  Compared compare_set(std::string_view key, ByteView expected, ByteView desired);
  bool remove(std::string_view key);

  std::size_t size() const { return values_.size(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, Bytes, Hash, std::equal_to<>> values_;
  std::size_t bytes_ = 0;
  KeyMapLimits limits_;
};

}  // namespace lockstep::internal
